"""The same things in other hands: the signals' records, the store's, and what waits in memory."""

from collections.abc import Mapping
from typing import cast

from daemon.learning.rides import Pending
from signals.plans import LessonKind, LessonPlan
from signals.records import Message, Relevance, Signal, Turn, Verdict, fingerprint_of, parse_signal
from signals.refusals import Refusal
from signals.runs import LessonSignal
from signals.weights import Trust
from store import records as stored
from store.columns import JsonValue
from store.words import Role


def stored_signal(signal: Signal, *, now_us: int, sender: Trust, sent: str | None = None) -> stored.Signal:
    """A signal as the store keeps it. `sent` is its fingerprint, where its client sent something else."""
    at_us = now_us if signal.at is None else int(signal.at.timestamp() * 1_000_000)
    body = signal.model_dump(mode="json")
    return stored.Signal(
        id=signal.id,
        agent=signal.agent,
        context=signal.context,
        kind=signal.kind,
        turn=None if isinstance(signal, Relevance) else signal.turn,
        engram=signal.engram if isinstance(signal, Relevance) else None,
        at_us=at_us,
        body=cast(Mapping[str, JsonValue], body),
        fingerprint=sent or fingerprint_of(body),
        sender=sender,
    )


def lesson_signal(body: Mapping[str, object]) -> LessonSignal:
    """A signal that makes a lesson, from its body as the store keeps it."""
    signal = parse_signal(dict(body))
    assert not isinstance(signal, Relevance | Verdict), f"a {signal.kind} makes no lesson"
    return signal


def turn_of(turn: stored.Turn, *, context_tokens: int) -> Turn:
    """A turn as planning reads it. Of a private one there is nothing to read."""
    messages = cast(list[dict[str, object]], turn.messages or [])
    return Turn(
        id=turn.id,
        agent=turn.agent,
        context=turn.context,
        private=turn.private,
        messages=tuple(Message.model_validate(message) for message in messages),
        template_args=dict(turn.template_args or {}),
        prompt_tokens=turn.prompt_tokens or (),
        reply_tokens=turn.reply_tokens or (),
        reply_text=turn.reply_text or "",
        adapter=turn.adapter,
        context_tokens=context_tokens,
    )


def stored_lesson(plan: LessonPlan, *, identity: str) -> stored.Lesson:
    """A plan as the store keeps it."""
    return stored.Lesson(
        id=identity,
        agent=plan.agent,
        context=plan.context,
        turn=plan.turn,
        kind=plan.kind,
        prefix_token_count=plan.prefix_tokens,
        tokens=plan.tokens,
        targets=plan.targets,
        weights=plan.weights,
        lr=plan.lr,
    )


def refused_signal(signal: str, why: Refusal) -> stored.RefusedSignal:
    """A refusal as the store takes it."""
    return stored.RefusedSignal(signal, why.code, why.message, why.position)


def plan_of(pending: Pending) -> LessonPlan:
    """The plan of a lesson that waits."""
    return LessonPlan(
        agent=pending.agent,
        context=pending.context,
        turn=pending.turn,
        kind=pending.kind,
        signals=pending.signals,
        prefix_tokens=len(pending.prefix),
        prefix=pending.prefix,
        tokens=pending.tokens,
        targets=pending.targets,
        weights=pending.weights,
        lr=pending.lr,
    )


def waiting_of(
    plan: LessonPlan,
    *,
    identity: str,
    stable: str,
    planned_at_us: int,
    served_here: bool,
    awaits: bool,
    held: bool,
) -> Pending:
    """A plan that was just kept, as it waits in memory."""
    return Pending(
        id=identity,
        agent=plan.agent,
        context=plan.context,
        kind=plan.kind,
        turn=plan.turn,
        signals=plan.signals,
        stable=stable,
        prefix=plan.prefix,
        tokens=plan.tokens,
        targets=plan.targets,
        weights=plan.weights,
        planned_at_us=planned_at_us,
        served_here=served_here,
        lr=plan.lr,
        awaits=awaits,
        held=held,
    )


def pending_of(kept: stored.KeptLesson, *, stable: str, served_here: bool) -> Pending:
    """A kept lesson as it waits in memory."""
    lesson = kept.lesson
    return Pending(
        id=lesson.id,
        agent=lesson.agent,
        context=lesson.context,
        kind=cast(LessonKind, lesson.kind),
        turn=lesson.turn,
        signals=tuple(link.signal for link in kept.links if link.role is Role.MAKES),
        stable=stable,
        prefix=kept.prefix,
        tokens=lesson.tokens,
        targets=lesson.targets,
        weights=lesson.weights,
        planned_at_us=kept.planned_at_us,
        served_here=served_here,
        lr=lesson.lr,
    )
