from hypothesis import given
from hypothesis import strategies as st

from signals.merging import merge, merged_with, overlap
from signals.plans import LessonPlan

SEQUENCE = tuple(range(100, 120))
SPANS = st.tuples(st.integers(1, 18), st.integers(1, 6)).map(lambda at: (at[0], min(at[0] + at[1], 20)))


def lesson(first: int, end: int, *, weight: float = 1.0, signal: str = "e1", kind: str = "engram") -> LessonPlan:
    """A lesson that learns SEQUENCE[first:end]."""
    return LessonPlan.model_validate(
        {
            "agent": "ada",
            "turn": "t",
            "context": "",
            "kind": kind,
            "signals": (signal,),
            "prefix_tokens": first - 1,
            "prefix": SEQUENCE[: first - 1],
            "tokens": SEQUENCE[first - 1 : end - 1],
            "targets": SEQUENCE[first:end],
            "weights": (weight,) * (end - first),
        }
    )


def weights_by_token(plan: LessonPlan) -> dict[int, float]:
    return {
        target: weight for target, weight in zip(plan.targets, plan.weights, strict=True) if target is not None
    }


def test_the_highest_weight_wins_at_each_token() -> None:
    made = merge([lesson(5, 9, weight=0.5), lesson(8, 12, weight=0.25, signal="e2")])
    assert made.weights == (0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25)
    assert made.signals == ("e1", "e2")
    assert (made.prefix, made.tokens, made.targets) == (SEQUENCE[:4], SEQUENCE[4:11], SEQUENCE[5:12])


def test_what_lies_between_is_read_and_not_learned() -> None:
    made = merge([lesson(9, 11, signal="e2"), lesson(3, 5)])
    assert made.tokens == SEQUENCE[2:10]
    assert made.targets == (103, 104, None, None, None, None, 109, 110)
    assert made.weights == (1, 1, 0, 0, 0, 0, 1, 1)


@given(st.lists(st.tuples(SPANS, st.sampled_from([0.25, 0.5, 1.0])), min_size=1, max_size=5))
def test_a_merged_lesson_learns_each_token_once_with_the_most_that_any_gives(
    asked: list[tuple[tuple[int, int], float]],
) -> None:
    plans = [lesson(*span, weight=weight, signal=f"e{i}") for i, (span, weight) in enumerate(asked)]
    expected: dict[int, float] = {}
    for plan in plans:
        for token, weight in weights_by_token(plan).items():
            expected[token] = max(expected.get(token, 0.0), weight)
    made = merge(plans)
    assert weights_by_token(made) == expected
    assert made.prefix + made.tokens == SEQUENCE[: made.last_position + 1]


def test_lessons_overlap_where_they_have_a_row_in_common() -> None:
    assert overlap(lesson(5, 9), lesson(8, 12))
    assert overlap(lesson(5, 12), lesson(8, 9))
    assert not overlap(lesson(5, 8), lesson(8, 12))


def test_only_engrams_of_one_turn_are_merged() -> None:
    assert not overlap(lesson(5, 9), lesson(5, 9, kind="action"))
    assert not overlap(lesson(5, 9), lesson(5, 9).model_copy(update={"turn": "other"}))


def test_what_waits_is_taken_in_as_far_as_one_lesson_may_go() -> None:
    waiting = {"far": lesson(1, 3), "left": lesson(2, 7), "right": lesson(8, 19)}
    new = lesson(5, 10)
    assert merged_with(new, waiting, max_tokens=100) == ["left", "right"]
    assert merged_with(new, waiting, max_tokens=10) == ["left"]
    assert merged_with(new, waiting, max_tokens=7) == []
