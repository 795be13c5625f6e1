"""Slots: what each live sequence holds, and which slot a new turn should go to. Lengths and ids, no tensors.

- A slot's cache is keyed by its stable set: rows served with other adapters are never reused.
- A turn goes to the free slot that it shares most with, when that is at least half of what the slot holds
  (going on with a conversation, or redoing its last turn); else to an empty or the longest unused one, so
  that a shared opening does not wipe out another conversation.
- A slot of a model with recurrent layers can be cut to its checkpoints only: what a turn shares with it is
  rounded down to one.
- A slot with a lesson pending is the last to be taken for something else, and never while its walk reads a
  prefix that the turn would overwrite.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from engine.served import ServedRows

KEEP_SHARE = 0.5
"""Share of a slot's rows a turn must have in common to take it over: lower, and a common system prompt would
evict conversations; higher, and editing a message in the middle of one would lose the rest of the prefix."""

BASE = "base"
"""The stable set of an agent that has none: the frozen model itself."""


@dataclass(slots=True)
class Slot:
    """One live sequence: the token ids its cache holds, how and with which stable set they were served.

    `checkpoints` are the lengths it can be cut to, besides none and all of what it holds; None: any length.
    `replying` says that its last row was an output row: a single row that follows is a reply's.
    """

    index: int
    stable: str = BASE
    tokens: list[int] = field(default_factory=list)
    served: ServedRows = field(default_factory=ServedRows)
    busy: bool = False
    used_at: float = 0.0
    pinned_tokens: int = 0
    checkpoints: Set[int] | None = None
    replying: bool = False

    def shared_with(self, tokens: Sequence[int], stable: str) -> int:
        """How many leading rows of the prompt `tokens` need not be served again under `stable`.

        Its last row always does: its distribution is what the reply begins with.
        """
        if stable != self.stable:
            return 0
        return self.reachable(min(common_prefix(self.tokens, tokens), len(tokens) - 1))

    def reachable(self, length: int) -> int:
        """The greatest length, `length` at most, that the slot can be cut to."""
        if self.checkpoints is None or length == len(self.tokens):
            return length
        return max((kept for kept in self.checkpoints if kept <= length), default=0)

    def can_take(self, tokens: Sequence[int], stable: str) -> bool:
        """Is the slot free, and would the turn leave a walk's prefix alone?"""
        return not self.busy and self.shared_with(tokens, stable) >= self.pinned_tokens


def common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    """The number of leading token ids that two sequences share."""
    return next(
        (i for i, (a, b) in enumerate(zip(held, wanted, strict=False)) if a != b),
        min(len(held), len(wanted)),
    )


def choose_slot(
    slots: Iterable[Slot], tokens: Sequence[int], stable: str, *, needed: Callable[[Slot], int] = lambda _: 0
) -> Slot | None:
    """The slot for a turn whose prompt is `tokens`, or None when it has to wait.

    `needed` tells how many of a slot's leading rows a pending lesson needs.
    """

    def dislike(slot: Slot) -> tuple[bool, bool, int, bool, float]:
        shared = slot.shared_with(tokens, stable)
        goes_on = shared > 0 and shared >= KEEP_SHARE * len(slot.tokens)
        return needed(slot) > shared, not goes_on, -shared if goes_on else 0, bool(slot.tokens), slot.used_at

    free = [slot for slot in slots if slot.can_take(tokens, stable)]
    return min(free, key=dislike, default=None)
