"""Why a signal's lesson weighs what it does: its text, and each token's weight with where that comes from."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from daemon.learning.lookups import Lookup, look_up
from daemon.learning.records import turn_of
from daemon.text.chat_template import HuggingFaceChat
from signals.explaining import Ask, ExplainedToken, explain
from signals.policy import AgentPolicy
from signals.records import Relevance, Verdict, parse_signal
from signals.refusals import RefusalError
from signals.runs import LessonSignal, find_run
from signals.tokens import RenderError
from signals.weights import weighing_of
from store import lessons, signals
from store.records import KeptLesson
from store.store import Store

UNTOLD: dict[str, Any] = {"text": "", "tokens": []}
"""What is told where there is nothing to tell."""

_AS_ADMITTED = AgentPolicy()
"""What became a lesson was trusted then, whatever the policy says by now."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """A lesson, and the signals that make it with what is known of each."""

    lesson: KeptLesson
    makers: Sequence[tuple[LessonSignal, Lookup]]


async def explained(store: Store, chat: HuggingFaceChat, signal: str) -> dict[str, Any]:
    """The lesson that a signal makes, as JSON; of one that makes none, or is private by now, there is no token.

    Raises:
        Unknown: there is no such signal.
    """
    facts = await store.read(_facts, signal)
    if facts is None:
        return UNTOLD
    tokens = await asyncio.to_thread(_tokens, facts, chat)
    texts = chat.token_texts
    return {
        "text": chat.decode([one.token for one in tokens]),
        "tokens": [_told(one, texts.text_of(one.token)) for one in tokens],
    }


def _facts(session: Session, signal: str) -> _Facts | None:
    kept = signals.signal_of(session, signal)
    if kept.lesson is None:
        return None
    lesson = lessons.lesson_of(session, kept.lesson)
    bodies = [made.signal.body for made in signals.signals_of(session, lessons.makers_of(session, kept.lesson))]
    parsed = [parse_signal(dict(body)) for body in bodies if body is not None]
    makers = [one for one in parsed if not isinstance(one, Relevance | Verdict)]
    found = look_up(session, makers)
    return None if any(one.private for one in found) else _Facts(lesson, list(zip(makers, found, strict=True)))


def _tokens(facts: _Facts, chat: HuggingFaceChat) -> tuple[ExplainedToken, ...]:
    lesson = facts.lesson.lesson
    asks = {signal.id: ask for signal, found in facts.makers if (ask := _ask(signal, found, chat)) is not None}
    return explain(
        prefix_tokens=lesson.prefix_token_count, targets=lesson.targets, weights=lesson.weights, asks=asks
    )


def _ask(signal: LessonSignal, found: Lookup, chat: HuggingFaceChat) -> Ask | None:
    """What a signal asks for; None where it is not found again, as the template is another by now."""
    assert found.turn is not None, f"signal {signal.id} makes a lesson without a turn"
    context_tokens = found.turn.prompt_token_count + found.turn.reply_token_count + 1
    try:
        run = find_run(signal, turn_of(found.turn, context_tokens=context_tokens), chat)
    except (RefusalError, RenderError):
        return None
    return Ask(run, weighing_of(signal, relevance=found.relevance, sender=found.sender, policy=_AS_ADMITTED))


def _told(one: ExplainedToken, text: str) -> dict[str, Any]:
    told: dict[str, Any] = {"position": one.position, "token": one.token, "text": text, "weight": one.weight}
    if one.weighing is None:
        return told | {"signal": None}
    by = one.weighing
    return told | {
        "signal": one.signal,
        "relevance": by.relevance,
        "source": by.origin,
        "source_factor": by.source_factor,
        "trust": by.trust,
        "trust_factor": by.trust_factor,
        "label": one.share,
    }
