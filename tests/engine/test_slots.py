"""Which slot a turn goes to."""

from engine.slots import KEEP_SHARE, Slot, choose_slot, common_prefix


def held(index: int, tokens: list[int], *, used_at: float = 0.0, **fields: bool | int | str) -> Slot:
    return Slot(index, tokens=tokens, used_at=used_at, **fields)  # type: ignore[arg-type]


def chosen(slots: list[Slot], tokens: list[int], *, needed: dict[int, int] | None = None) -> int | None:
    slot = choose_slot(slots, tokens, "base", needed=lambda slot: (needed or {}).get(slot.index, 0))
    return None if slot is None else slot.index


def test_the_common_prefix_is_counted_to_the_first_difference_or_the_shorter_end() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0


def test_a_turn_goes_on_where_its_conversation_is() -> None:
    assert chosen([held(0, []), held(1, [1, 2, 3]), held(2, [1, 9])], [1, 2, 3, 4]) == 1


def test_a_shared_opening_is_no_reason_to_wipe_out_a_conversation() -> None:
    conversation = list(range(20))
    less_than_half = [*conversation[: int(20 * KEEP_SHARE) - 1], 99]
    assert chosen([held(0, conversation), held(1, [], used_at=9.0)], less_than_half) == 1


def test_an_empty_slot_comes_before_one_in_use_and_the_longest_unused_before_others() -> None:
    assert chosen([held(0, [5], used_at=1.0), held(1, [], used_at=9.0)], [1, 2]) == 1
    assert chosen([held(0, [5], used_at=2.0), held(1, [6], used_at=1.0)], [1, 2]) == 1


def test_a_slot_that_a_lesson_needs_is_the_last_to_be_taken() -> None:
    slots = [held(0, [5, 6], used_at=1.0), held(1, [6, 7], used_at=2.0)]
    assert chosen(slots, [1, 2], needed={0: 2}) == 1
    assert chosen(slots[:1], [1, 2], needed={0: 2}) == 0


def test_going_on_is_no_reason_to_cut_a_lessons_prefix_while_another_slot_is_free() -> None:
    slots = [held(0, [1, 2, 3, 4]), held(1, [])]
    assert chosen(slots, [1, 2, 3, 9], needed={0: 4}) == 1
    assert chosen(slots, [1, 2, 3, 9], needed={0: 3}) == 0


def test_rows_served_with_another_stable_set_are_never_shared() -> None:
    other = held(0, [1, 2, 3], stable="other")
    assert other.shared_with([1, 2, 3], "base") == 0


def test_the_last_row_of_a_prompt_is_always_served_anew() -> None:
    assert held(0, [1, 2, 3]).shared_with([1, 2, 3], "base") == 2


def test_a_busy_slot_and_one_whose_walk_reads_what_the_turn_would_overwrite_are_not_taken() -> None:
    assert chosen([held(0, [1, 2], busy=True)], [1, 2, 3]) is None
    assert chosen([held(0, [1, 2, 3, 4], pinned_tokens=3)], [1, 2, 9]) is None
    assert chosen([held(0, [1, 2, 3, 4], pinned_tokens=2)], [1, 2, 9]) == 0
