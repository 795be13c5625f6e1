"""The lessons of a soak: on what a turn was asked, on what it replied, and some that are to be refused.

- A turn's `tokens` are its prompt; on the slot its reply follows them.
- What is random about a lesson is drawn from `chance`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from engine.orders import LessonOrder, TurnOrder

MOST_RUN = 24
"""Tokens that a lesson asks to be learned, at most."""

SPOILED_SHARE = 0.25
"""Share of lessons that are made to be refused."""

TOO_HEAVY = 3e38
"""A weight with which the loss is beyond float32: the walk fails when it comes to it."""

REFUSALS = frozenset(
    {
        "adapter_unknown",
        "bad_weight",
        "cancelled",
        "nonfinite_loss",
        "past_context",
        "recurrent_state_missing",
        "unserved_prefix",
    }
)
"""Every code that a lesson here may be refused with."""


def lesson_on(turn: TurnOrder, *, name: str, shadow: str, chance: random.Random, context: int) -> LessonOrder:
    """A lesson that rides the turn: on a span of its prompt, or on another reply than it will have."""
    first = chance.randint(1, len(turn.tokens))
    sequence = turn.tokens[: first + MOST_RUN]
    if first == len(turn.tokens) or chance.random() < 0.5:
        first = len(turn.tokens)
        sequence = (*turn.tokens, *chance.choices(turn.tokens, k=chance.randint(1, MOST_RUN)))
    lesson = _lesson(turn, name, shadow, sequence, first)
    lesson = replace(lesson, rides=turn.id, weights=_weights(len(lesson.targets), chance))
    return _spoiled(lesson, chance, context) if chance.random() < SPOILED_SHARE else lesson


def reply_lesson(turn: TurnOrder, reply: Sequence[int], *, name: str, shadow: str) -> LessonOrder:
    """A lesson on the turn's own reply, which starts whenever the lane can."""
    return _lesson(turn, name, shadow, (*turn.tokens, *reply[:MOST_RUN]), len(turn.tokens))


def _lesson(turn: TurnOrder, name: str, shadow: str, sequence: Sequence[int], first_target: int) -> LessonOrder:
    run = tuple(sequence[first_target - 1 : -1])
    return LessonOrder(
        id=name,
        shadow=shadow,
        stable=turn.stable,
        prefix=tuple(sequence[: first_target - 1]),
        tokens=run,
        targets=tuple(sequence[first_target:]),
        weights=(1.0,) * len(run),
    )


def _weights(count: int, chance: random.Random) -> tuple[float, ...]:
    """Weights as signals have them. The last is not zero: a step has to move the shadow."""
    return (*chance.choices((0.0, 0.25, 0.8, 1.0), k=count - 1), 1.0)


def _spoiled(lesson: LessonOrder, chance: random.Random, context: int) -> LessonOrder:
    count, long = len(lesson.tokens), context + 1
    other = (lesson.prefix[0] ^ 1, *lesson.prefix[1:]) if lesson.prefix else (*lesson.tokens, *lesson.tokens)
    return chance.choice(
        (
            replace(lesson, prefix=other),
            replace(lesson, shadow="nobody's"),
            replace(lesson, weights=(-1.0,) * count),
            replace(lesson, weights=(TOO_HEAVY,) * count),
            replace(lesson, tokens=(0,) * long, targets=(0,) * long, weights=(1.0,) * long),
        )
    )
