"""The slots' keys and values, and the view of the slots that a pass through the layers gets.

Letters: `S` slots, `K` key heads, `N` context tokens, `D` head size, `B` slots in a pass, `T` rows a slot.

- Storage is static: one [S, K, N, D] tensor for keys and one for values a layer, allocated at the first pass
  (the operating system commits a page when it is first written). Ownership, which rows of it hold what, is
  the slots' business.
- A `ServingView` writes the pass's rows at their positions, then attends over all that the slot holds.
- A lesson's pass has a view of its own (`engine/run_view.py`), which writes nothing.
- A recurrent layer reads from the view its states before the pass, and hands it those after.
- Transformers hands its cache object to every layer and asks it for what it needs: a view is that object.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from engine.attention import AttentionForm, attend, attend_decode
from engine.errors import ModelNotUsable
from engine.passes import neighbours
from engine.recurrent import PassStates, ServingStates, StateKey


class KeyValueStore:
    """Keys and values of every slot, by layer."""

    def __init__(self, *, slots: int, context_tokens: int) -> None:
        self.slots = slots
        self.context_tokens = context_tokens
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def write(self, layer: int, *, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [K, T, D] of one slot at positions start … start + T − 1."""
        stop = start + keys.shape[1]
        assert stop <= self.context_tokens, f"rows up to {stop} in a context of {self.context_tokens}"
        if layer not in self._keys:
            self._keys[layer] = self._allocate(keys)
            self._values[layer] = self._allocate(values)
        self._keys[layer][slot, :, start:stop] = keys
        self._values[layer][slot, :, start:stop] = values

    def write_rows(self, layer: int, *, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put one row of keys and values [B, K, D] for each of B slots at its own position."""
        self._keys[layer][slots, :, positions] = keys
        self._values[layer][slots, :, positions] = values

    def read_slots(self, layer: int, *, slots: slice, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of neighbouring slots at positions 0 … stop − 1, as views [B, K, stop, D]."""
        return self._keys[layer][slots, :, :stop], self._values[layer][slots, :, :stop]

    def holds(self, layer: int) -> bool:
        """Has the layer's storage been allocated?"""
        return layer in self._keys

    def read(self, layer: int, *, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """The slot's keys and values at positions 0 … stop − 1, as views [1, K, stop, D]."""
        return (
            self._keys[layer][slot : slot + 1, :, :stop],
            self._values[layer][slot : slot + 1, :, :stop],
        )

    def sha256(self, *, slot: int, stop: int) -> str:
        """The SHA-256 of every byte the slot holds at positions 0 … stop − 1, over all layers."""
        digest = hashlib.sha256()
        for layer in sorted(self._keys):
            for part in self.read(layer, slot=slot, stop=stop):
                digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values (committed only once written)."""
        return sum(part.nbytes for store in (self._keys, self._values) for part in store.values())

    def _allocate(self, like: Tensor) -> Tensor:
        heads, _, size = like.shape
        return torch.zeros(self.slots, heads, self.context_tokens, size, dtype=like.dtype, device=like.device)


class PassView(Cache, ABC):
    """What a pass through the layers sees of the slots, in the shape of a transformers cache."""

    def __init__(self, *, layers: int, seen_tokens: int, states: PassStates | None) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self._seen_tokens = seen_tokens
        self._states = states

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Attention of the pass's rows: query [B, Q, T, D], key and value [B, K, T, D]; returns [B, Q, T, D]."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,  # noqa: ARG002 - the signature is transformers'
        *args: object,  # noqa: ARG002
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Hand the pass's own keys and values on: what stands before them is joined in `attend`."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """How many tokens stand before the pass."""
        return self._seen_tokens

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The rows [B, C, K] that a convolution saw last, or None before the first."""
        return self._states_of(layer_idx).read(StateKey(layer_idx, "conv", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: object,  # noqa: ARG002 - the signature is transformers'
    ) -> Tensor:
        """A convolution's new rows [B, C, T] joined to those before them."""
        assert conv_kernel_size is not None, f"layer {layer_idx} doesn't say how wide its convolution is"
        key = StateKey(layer_idx, "conv", state_idx)
        return self._states_of(layer_idx).extend(key, conv_states, width=conv_kernel_size)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state [B, ...] that a recurrence handed on last, or None before the first row."""
        return self._states_of(layer_idx).read(StateKey(layer_idx, "recurrent", state_idx))

    def update_recurrent_state(
        self,
        recurrent_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        **kwargs: object,  # noqa: ARG002
    ) -> Tensor:
        """Take the state [B, ...] that a recurrence hands on."""
        self._states_of(layer_idx).hand_on(StateKey(layer_idx, "recurrent", state_idx), recurrent_states)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:  # noqa: ARG002
        """Does anything stand before the pass?"""
        return self._seen_tokens > 0

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        """Say yes: it keeps layers from convolving one row by a kernel that updates the state in place."""
        return True

    def _states_of(self, layer: int) -> PassStates:
        if self._states is None:
            raise ModelNotUsable(
                f"layer {layer} keeps a recurrent state, which the model's configuration doesn't say; "
                "serve a model of a family that this engine knows"
            )
        return self._states


class ServingView(PassView):
    """B slots, T rows each, at the positions that follow what each slot holds."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        layers: int,
        slots: Sequence[int],
        starts: Sequence[int],
        states: ServingStates | None = None,
    ) -> None:
        super().__init__(layers=layers, seen_tokens=max(starts), states=states)
        self._store = store
        self._places = tuple(zip(slots, starts, strict=True))
        self._slots, self._starts = torch.tensor(slots), torch.tensor(starts)
        self._neighbours = neighbours(slots)
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Write the rows' keys and values, then attend: neighbours' single rows together."""
        rows = key.shape[2]
        plain = form.softcap is None and form.sinks is None
        if rows == 1 and len(self._places) > 1 and plain and self._store.holds(layer):
            return self._attend_together(layer, query, key, value, form)
        attended = []
        for i, (slot, start) in enumerate(self._places):
            self._store.write(layer, slot=slot, start=start, keys=key[i], values=value[i])
            keys, values = self._store.read(layer, slot=slot, stop=start + rows)
            attended.append(attend(query[i : i + 1], keys, values, form))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend_together(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        self._store.write_rows(
            layer, slots=self._slots, positions=self._starts, keys=key[:, :, 0], values=value[:, :, 0]
        )
        attended = []
        for first, stop in self._neighbours:
            longest = int(self._starts[first:stop].max()) + 1
            slots = slice(self._places[first][0], self._places[stop - 1][0] + 1)
            keys, values = self._store.read_slots(layer, slots=slots, stop=longest)
            seen = self._seen(first, stop, longest, form.window)
            attended.append(attend_decode(query[first:stop], keys, values, seen, form))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _seen(self, first: int, stop: int, longest: int, window: int | None) -> Tensor:
        """What each row of neighbouring slots sees: bool [B, 1, 1, N], made once a pass."""
        if (first, window) not in self._masks:
            own = self._starts[first:stop, None]
            positions = torch.arange(longest)
            seen = positions <= own
            if window is not None:
                seen &= positions > own - window
            self._masks[first, window] = seen[:, None, None]
        return self._masks[first, window]
