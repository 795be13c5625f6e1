"""Merging: lessons of engrams that overlap in one turn are one lesson, so that no token is learned twice.

* The highest weight wins at each token.
* What is merged stays within the tokens that one lesson may have; what would not stands by itself.
"""

from collections.abc import Mapping, Sequence

from signals.plans import LessonPlan


def merged_with(new: LessonPlan, waiting: Mapping[str, LessonPlan], *, max_tokens: int) -> list[str]:
    """Of the lessons that wait, by id and the oldest first, those that ``new`` is to be one lesson with."""
    chosen: list[str] = []
    whole = new
    for identity, other in waiting.items():
        if overlap(new, other) and len((more := merge([whole, other])).tokens) <= max_tokens:
            whole = more
            chosen.append(identity)
    return chosen


def overlap(one: LessonPlan, other: LessonPlan) -> bool:
    """Tell whether two lessons of engrams have a row in common."""
    ours = one.kind == other.kind == "engram" and one.turn == other.turn
    return ours and one.prefix_tokens <= other.last_position and other.prefix_tokens <= one.last_position


def merge(plans: Sequence[LessonPlan]) -> LessonPlan:
    """Make one lesson of several of one turn; the first says whose it is."""
    assert len({plan.turn for plan in plans}) == 1, f"lessons of several turns: {[plan.turn for plan in plans]}"
    longest = max(plans, key=lambda plan: plan.last_position)
    sequence = (*longest.prefix, *longest.tokens, longest.targets[-1])
    first, end = min(plan.prefix_tokens for plan in plans), longest.last_position + 1
    weights = [0.0] * (end - first)
    for plan in plans:
        for row, weight in enumerate(plan.weights, start=plan.prefix_tokens - first):
            weights[row] = max(weights[row], weight)
    return plans[0].model_copy(
        update={
            "signals": tuple(dict.fromkeys(signal for plan in plans for signal in plan.signals)),
            "prefix_tokens": first,
            "prefix": sequence[:first],
            "tokens": sequence[first:end],
            "targets": tuple(sequence[first + row + 1] if weight else None for row, weight in enumerate(weights)),
            "weights": tuple(weights),
        }
    )
