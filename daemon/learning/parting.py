"""Parting: a lesson that several signals make, as it is without some of them.

- The signals are planned again, all of them first: only where that gives the lesson as it is kept is it known what
  each of them has brought to it.
- A step can be taken again without some of its signals only where it is known how its prefix was served then too,
  which is longer if the run begins later: as far as the last of its passes goes.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from daemon.learning.lookups import look_up
from daemon.learning.records import lesson_signal, stored_lesson, turn_of
from engine.served import ServedPrefix
from signals.merging import merge
from signals.planning import plan
from signals.plans import LessonPlan
from signals.policy import AgentPolicy
from signals.tokens import ChatTokenizer
from store import lessons, signals, steps
from store.forget import Parted
from store.records import KeptLesson, KeptStep, Lesson
from store.scopes import Shared
from store.words import Role

_ANYTHING = 2**31
"""Tokens, where what was planned once is not to be refused now."""

_ALLOWED = AgentPolicy(learn=True, max_lesson_tokens=_ANYTHING)


def part(session: Session, shared: Shared, chat: ChatTokenizer) -> Parted | None:
    """The lesson as the other signals alone make it; None where they cannot be told apart."""
    kept = lessons.lesson_of(session, shared.lesson)
    makers = [link.signal for link in kept.links if link.role is Role.MAKES]
    plans = _planned(session, makers, chat)
    if plans is None or not _is(kept, merge(plans)):
        return None
    left = merge([made for maker, made in zip(makers, plans, strict=True) if maker not in shared.gone])
    lesson = stored_lesson(left, identity=shared.lesson)
    if shared.step is None:
        return Parted(shared, lesson, None)
    step = _step_of(steps.step_of(session, shared.step), lesson, left.signals)
    return None if step is None else Parted(shared, lesson, step)


def _planned(session: Session, makers: Sequence[str], chat: ChatTokenizer) -> list[LessonPlan] | None:
    bodies = [kept.signal.body for kept in signals.signals_of(session, makers)]
    given = [lesson_signal(body) for body in bodies if body is not None]  # without one its text is erased
    if len(given) < len(makers):
        return None
    plans = [
        plan(
            signal,
            None if seen.turn is None else turn_of(seen.turn, context_tokens=_ANYTHING),
            policy=_ALLOWED,
            tokenizer=chat,
            context_tokens=_ANYTHING,
            sender=seen.sender,
            relevance=seen.relevance,
        )
        for signal, seen in zip(given, look_up(session, given), strict=True)
    ]
    made = [one for one in plans if isinstance(one, LessonPlan)]
    return made if len(made) == len(makers) else None


def _is(kept: KeptLesson, planned: LessonPlan) -> bool:
    lesson = kept.lesson
    was = (kept.prefix, lesson.tokens, lesson.targets, lesson.weights, lesson.lr)
    return was == (planned.prefix, planned.tokens, planned.targets, planned.weights, planned.lr)


def _step_of(kept: KeptStep, lesson: Lesson, makers: tuple[str, ...]) -> KeptStep | None:
    """The step as it is to be taken again."""
    served = ServedPrefix.of_json(kept.step.served).grown(lesson.prefix_token_count)
    if served is None:
        return None
    chunk_rows = min(kept.step.chunk_rows, len(lesson.tokens))
    return replace(
        kept,
        step=replace(kept.step, served=served.as_json(), chunk_rows=chunk_rows),
        signals=makers,
        prefix_token_count=lesson.prefix_token_count,
        tokens=lesson.tokens,
        targets=lesson.targets,
        weights=lesson.weights,
    )
