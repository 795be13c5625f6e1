"""Recurrent states: what convolutions and recurrences carry from one row to the next, and checkpoints of it.

Letters: `B` slots in a pass, `T` rows of each, `C` channels, `K` the width of a convolution.

- A state cannot be cut back: a slot goes on from where it stands, from a checkpoint, or from nothing.
- A slot's state is a value: a pass makes a new one, and nobody writes into an old one. So a checkpoint, and
  what a lesson starts from, is a reference; and a pass that fails leaves the slot's state as it was.
- Checkpoints are evicted by bytes, oldest first, over all slots together.
- A lesson's states are constants: neither a gradient nor a layer's update in place reaches them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

RECURRENT_FAMILIES = frozenset(
    {
        "falcon_h1",
        "granitemoehybrid",
        "lfm2",
        "lfm2_moe",
        "mamba2",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)
"""The recurrent families whose passes and lessons are held against the model's own forward and autograd in the
tests. A family that lost its state between passes would answer wrongly and say nothing, so others are refused."""

CHECKPOINT_BYTES = 1 << 30
"""What all checkpoints together may take. Two are made a turn; one of a hybrid model of a billion parameters
takes about 20 MB, so that some fifty remain: with less, a lesson would find its turn's checkpoint gone."""


class StateKey(NamedTuple):
    """Which state of the model; `state` tells apart those of one layer."""

    layer: int
    kind: Literal["conv", "recurrent"]
    state: int


SlotState = Mapping[StateKey, Tensor]
"""One slot's states after some row, each [1, ...]; empty before the first row."""


class Constant(Tensor):
    """A state that layers read and cannot update: one-row kernels write the new state into the old one's place,
    which would change the slot and take away what the backward pass needs.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def copy_(self, *_args: Any, **_kwargs: Any) -> Tensor:
        """Stay as it is."""
        return self


class PassStates(ABC):
    """What the layers of one pass read, the states before its rows, and hand on, the states after them."""

    @abstractmethod
    def read(self, key: StateKey) -> Tensor | None:
        """The state before the pass [B, ...], or None before a slot's first row."""

    @abstractmethod
    def hand_on(self, key: StateKey, state: Tensor) -> None:
        """Take the state after the pass [B, ...]."""

    def extend(self, key: StateKey, rows: Tensor, *, width: int) -> Tensor:
        """A convolution's rows [B, C, T] joined to the K before them, or padded to K; hands on the last K."""
        before = self.read(key)
        if before is None:
            full = F.pad(rows, (max(0, width - rows.shape[-1]), 0))
        else:
            full = torch.cat([before, rows], dim=-1)
        self.hand_on(key, full[..., -width:])
        return full


class ServingStates(PassStates):
    """The states of B slots, stacked for a pass: copies, which a layer may update in place."""

    def __init__(self, slots: Sequence[SlotState]) -> None:
        assert len({frozenset(state) for state in slots}) == 1, "slots with and without a state in one pass"
        self._slots = len(slots)
        self._states = {key: torch.cat([state[key] for state in slots]) for key in slots[0]}

    def read(self, key: StateKey) -> Tensor | None:
        """The slots' states before the pass."""
        return self._states.get(key)

    def hand_on(self, key: StateKey, state: Tensor) -> None:
        """Put the state after the pass in the place of that before it: each layer reads once."""
        self._states[key] = state

    def split(self) -> list[SlotState]:
        """Each slot's states as they are now, apart from the pass's own tensors."""
        return [{key: state[i : i + 1].clone() for key, state in self._states.items()} for i in range(self._slots)]


class RecurrentStates:
    """Every slot's state now, and its checkpoints by the number of rows they stand after."""

    def __init__(self, *, slots: int, checkpoint_bytes: int) -> None:
        self.positions: tuple[set[int], ...] = tuple(set() for _ in range(slots))
        self._now: list[SlotState] = [{} for _ in range(slots)]
        self._checkpoints: dict[tuple[int, int], SlotState] = {}  # (slot, rows), oldest first
        self._checkpoint_bytes = checkpoint_bytes

    def now(self, slot: int) -> SlotState:
        """The slot's state after all that it holds."""
        return self._now[slot]

    def advance(self, slot: int, state: SlotState) -> None:
        """The slot was served more rows, and this is its state after them."""
        self._now[slot] = state

    def keep(self, slot: int, *, position: int) -> None:
        """Make a checkpoint of the slot's state now, after `position` rows. After no row there is none to keep."""
        if position:
            self._checkpoints.setdefault((slot, position), self._now[slot])
            self.positions[slot].add(position)

    def checkpoint(self, slot: int, position: int) -> SlotState:
        """The slot's state after `position` rows; it must have been kept, or be that before the first row."""
        return self._checkpoints[slot, position] if position else {}

    def cut(self, slot: int, *, position: int) -> None:
        """Go back to the state after `position` rows, and forget what was kept after later ones."""
        self._now[slot] = self.checkpoint(slot, position)
        for later in [kept for kept in self.positions[slot] if kept > position]:
            self._forget(slot, later)

    def evict(self) -> None:
        """Forget the oldest checkpoints until the rest fit the budget."""
        excess = self.nbytes - self._checkpoint_bytes
        for (slot, position), state in list(self._checkpoints.items()):
            if excess <= 0:
                return
            excess -= _nbytes(state)
            self._forget(slot, position)

    @property
    def nbytes(self) -> int:
        """Bytes that the checkpoints hold."""
        return sum(_nbytes(state) for state in self._checkpoints.values())

    def sha256(self, slot: int) -> str:
        """The SHA-256 of every byte of the slot's state now and of its checkpoints."""
        digest = hashlib.sha256()
        kept = [(f"after {rows}", self._checkpoints[slot, rows]) for rows in sorted(self.positions[slot])]
        for name, states in [("now", self._now[slot]), *kept]:
            for key in sorted(states):
                digest.update(f"{name} {key}\n".encode())
                digest.update(states[key].contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _forget(self, slot: int, position: int) -> None:
        del self._checkpoints[slot, position]
        self.positions[slot].discard(position)


def _nbytes(state: SlotState) -> int:
    return sum(tensor.nbytes for tensor in state.values())
