"""The lessons that wait for a batch to carry them: whose turn it is, and which slot holds what it needs.

- A lesson that rides a turn is ready once that turn's prompt is served, or is being served by the batch in hand;
  one that rides none is ready at once. The order given is the order kept.
- A lesson starts only where a slot holds its prefix token by token, under the stable set it was served with;
  otherwise it is refused with the first position that differs.
- The prefixes of lessons still to come are kept in mind, so that their slots are the last to be taken.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.batch import Row
from engine.errors import LessonRefused
from engine.orders import LessonOrder
from engine.slots import Slot, common_prefix


@dataclass(frozen=True, slots=True)
class Boarding:
    """What a batch in hand offers: its rows, the slots of live and held turns, and the turns still without one."""

    rows: tuple[Row, ...]
    slots: Sequence[Slot]
    live: Mapping[str, Slot]
    unserved: Collection[str]
    """Turns whose prompt is not served to its end, this batch included."""


class LessonQueue:
    """Lessons in the order they were ordered."""

    def __init__(self) -> None:
        self._orders: deque[LessonOrder] = deque()
        self._kept: dict[str, tuple[str, list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._orders)

    def add(self, order: LessonOrder) -> None:
        """A lesson waits for a batch."""
        self.keep(order.id, stable=order.stable, prefix=order.prefix)
        self._orders.append(order)

    def take(self, lessons: Collection[str]) -> list[LessonOrder]:
        """Take those lessons out of the queue."""
        taken = [order for order in self._orders if order.id in lessons]
        for order in taken:
            self._orders.remove(order)
        return taken

    def riding(self, turn: str) -> list[str]:
        """The lessons that wait for that turn."""
        return [order.id for order in self._orders if order.rides == turn]

    def keep(self, lesson: str, *, stable: str, prefix: Sequence[int]) -> None:
        """Until the lesson is released, a slot that holds its prefix is the last to be taken."""
        self._kept[lesson] = (stable, list(prefix))

    def release(self, lesson: str) -> None:
        """The lesson needs its prefix no longer."""
        self._kept.pop(lesson, None)

    def needed_tokens(self, slot: Slot) -> int:
        """How many of the slot's leading rows are the prefix of a lesson still to come."""
        held = 0
        for stable, prefix in self._kept.values():  # lists, compared as such: there may be thousands
            if stable == slot.stable and len(prefix) > held and slot.tokens[: len(prefix)] == prefix:
                held = len(prefix)
        return held

    def ready(self, boarding: Boarding) -> Iterator[tuple[LessonOrder, Slot | LessonRefused]]:
        """Take out, one by one, the lessons that may start with the batch: each with its slot, or its refusal."""
        for order in [order for order in self._orders if order.rides not in boarding.unserved]:
            self._orders.remove(order)
            try:
                yield order, _holder(order, boarding)
            except LessonRefused as refused:
                yield order, refused


def _holder(order: LessonOrder, boarding: Boarding) -> Slot:
    """The slot that holds the lesson's prefix; that of the turn it rides, if it does.

    Raises:
        LessonRefused: `unserved_prefix`.
    """
    riding = boarding.live.get(order.rides or "")
    slots = sorted(boarding.slots, key=lambda slot: slot is not riding)
    held = {slot.index: _held(slot, boarding.rows) for slot in slots}
    shared = {
        slot.index: common_prefix(held[slot.index], order.prefix) if slot.stable == order.stable else 0
        for slot in slots
    }
    best = max(slots, key=lambda slot: shared[slot.index])
    if shared[best.index] < len(order.prefix):
        raise _unserved(order, best, held[best.index], shared[best.index])
    return best


def _held(slot: Slot, rows: Iterable[Row]) -> list[int]:
    """What the slot holds once the batch in hand is served."""
    return slot.tokens + [row.token for row in rows if row.slot == slot.index]


def _unserved(order: LessonOrder, slot: Slot, held: list[int], position: int) -> LessonRefused:
    other = slot.stable == order.stable and position < len(held)
    says = "another token" if other else "nothing"
    return LessonRefused(
        "unserved_prefix",
        f"the lesson needs a prefix of {len(order.prefix)} tokens as served by {order.stable}; slot "
        f"{slot.index} comes closest and has {says} at position {position}, where the prefix has token "
        f"{order.prefix[position]}; serve the conversation unchanged on one slot until the lesson has ridden",
        position=position,
    )
