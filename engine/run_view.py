"""What a lesson's pass sees of the slot and of itself: the served prefix, and what the run's chunks hand on.

- A run is taken in chunks of consecutive rows. Chunk j reads the prefix, a constant, and what chunks before it
  handed on: their keys and values, and the recurrent state after the last of them.
- What a chunk hands on is kept as leaves of their own, cut off from the graph that made them. The backward pass
  goes from the last chunk to the first: later chunks leave their gradients on the leaves, and these are the
  gradients of what the earlier chunk's graph handed on. Nothing is lost at the border: the walk is exact.
- Nothing is written to the slot.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention import AttentionForm
from engine.cache import KeyValueStore, PassView
from engine.lesson_attention import attend_lesson
from engine.recurrent import Constant, PassStates, SlotState, StateKey

Handed = dict[str, Tensor]
"""What one layer of one chunk hands on, by name: `keys` and `values` [1, K, C, D], and its recurrent states."""


class RunLinks:
    """The leaves between chunks: by chunk and layer, what the later chunks read."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[int, int], Handed] = {}

    def add(self, chunk: int, layer: int, handed: Handed, *, learns: bool) -> None:
        """Keep what a chunk's layer handed on, as leaves; with `learns` they gather gradients."""
        self._leaves[chunk, layer] = {name: held.detach().requires_grad_(learns) for name, held in handed.items()}

    def take(self, chunk: int, layer: int) -> Handed:
        """The leaves that a chunk's layer handed on, which nothing reads any more."""
        return self._leaves.pop((chunk, layer))

    def earlier(self, chunk: int, layer: int, name: str) -> list[Tensor]:
        """What the chunks before handed on under that name."""
        return [self._leaves[before, layer][name] for before in range(chunk)]

    def last(self, chunk: int, layer: int, name: str) -> Tensor:
        """What the chunk just before handed on under that name."""
        return self._leaves[chunk - 1, layer][name]


class ChunkStates(PassStates):
    """A chunk's recurrent states: read as often as the walk asks, and kept apart when handed on."""

    def __init__(self, prefix: SlotState, links: RunLinks, chunk: int) -> None:
        self._prefix = prefix
        self._links = links
        self._chunk = chunk
        self.handed: dict[StateKey, Tensor] = {}

    def read(self, key: StateKey) -> Tensor | None:
        """The state before the chunk: the prefix's, or that after the chunk before. Layers cannot update it."""
        if self._chunk > 0:
            return self._links.last(self._chunk, key.layer, _name(key)).as_subclass(Constant)
        return self._prefix[key].as_subclass(Constant) if key in self._prefix else None

    def hand_on(self, key: StateKey, state: Tensor) -> None:
        """Take the state after the chunk."""
        self.handed[key] = state


class LessonView(PassView):
    """One chunk of a run after a served prefix."""

    def __init__(
        self,
        store: KeyValueStore,
        links: RunLinks,
        *,
        layers: int,
        slot: int,
        prefix_tokens: int,
        chunk: int,
        chunk_start: int,
        prefix_states: SlotState | None,
    ) -> None:
        states = None if prefix_states is None else ChunkStates(prefix_states, links, chunk)
        super().__init__(layers=layers, seen_tokens=chunk_start, states=states)
        self._store = store
        self._links = links
        self._slot = slot
        self._prefix_tokens = prefix_tokens
        self._chunk = chunk
        self._chunk_states = states
        self._handed: Handed = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Attend over the prefix as served, the run's earlier chunks and the chunk's own keys and values."""
        self._handed |= {"keys": key, "values": value}
        prefix = None
        if self._prefix_tokens:
            prefix = self._store.read(layer, slot=self._slot, stop=self._prefix_tokens)
        keys = _joined([*self._links.earlier(self._chunk, layer, "keys"), key])
        values = _joined([*self._links.earlier(self._chunk, layer, "values"), value])
        return attend_lesson(query, (keys, values), prefix, form)

    def handed_on(self) -> Handed:
        """What the layer that just ran hands on to later chunks, with its graph."""
        handed, self._handed = self._handed, {}
        if self._chunk_states is not None:
            handed |= {_name(key): state for key, state in self._chunk_states.handed.items()}
            self._chunk_states.handed = {}
        return handed


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


def _name(key: StateKey) -> str:
    return f"{key.kind} {key.state}"
