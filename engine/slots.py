"""Slots: what each live sequence holds, and which slot a new turn should go to. Lengths and ids, no tensors.

- A slot's cache is keyed by its stable set: rows served with other adapters are never reused.
- A turn goes to the free slot that it shares most with, when that is at least half of what the slot holds
  (going on with a conversation, or redoing its last turn); else to an empty or the longest unused one, so
  that a shared opening does not wipe out another conversation.
- A slot with a lesson pending is the last to be taken for something else, and never while its walk reads a
  prefix that the turn would overwrite.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

KEEP_SHARE = 0.5
"""Share of a slot's rows a turn must have in common to take it over: lower, and a common system prompt would
evict conversations; higher, and editing a message in the middle of one would lose the rest of the prefix."""

BASE = "base"
"""The stable set of an agent that has none: the frozen model itself."""


@dataclass(slots=True)
class Slot:
    """One live sequence: the token ids its cache holds, and the stable set they were served with."""

    index: int
    stable: str = BASE
    tokens: list[int] = field(default_factory=list)
    busy: bool = False
    used_at: float = 0.0
    pinned_tokens: int = 0

    def shared_with(self, tokens: Sequence[int], stable: str) -> int:
        """How many leading rows of the prompt `tokens` need not be served again under `stable`.

        Its last row always does: its distribution is what the reply begins with.
        """
        return min(common_prefix(self.tokens, tokens), len(tokens) - 1) if stable == self.stable else 0

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
    slots: Iterable[Slot], tokens: Sequence[int], stable: str, *, needed: Callable[[Slot], bool] = lambda _: False
) -> Slot | None:
    """The slot for a turn whose prompt is `tokens`, or None when it has to wait.

    `needed` tells whether a lesson is pending on what a slot holds.
    """
    free = [slot for slot in slots if slot.can_take(tokens, stable)]
    if not free:
        return None
    best = max(free, key=lambda slot: slot.shared_with(tokens, stable))
    shared = best.shared_with(tokens, stable)
    if shared and shared >= KEEP_SHARE * len(best.tokens):
        return best
    return min(free, key=lambda slot: (needed(slot), bool(slot.tokens), slot.used_at))
