"""The slots' keys and values, and the two views of them that a pass through the layers gets.

Letters: `S` slots, `K` key heads, `N` context tokens, `D` head size, `B` slots in a pass, `T` rows a slot.

- Storage is static: one [S, K, N, D] tensor for keys and one for values a layer, allocated at the first pass
  (the operating system commits a page when it is first written). Ownership, which rows of it hold what, is
  the slots' business.
- A `ServingView` writes the pass's rows at their positions, then attends over all that the slot holds.
- A `LessonView` attends over the slot's prefix, a constant, and the run's own rows; it writes nothing.
- Transformers hands its cache object to every layer and asks it for what it needs: the views are that object.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from engine.attention import AttentionForm, attend
from engine.errors import ModelNotUsable


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

    def __init__(self, *, layers: int, seen_tokens: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self._seen_tokens = seen_tokens

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

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:  # noqa: ARG002
        """Refuse: recurrent layers keep no state here."""
        raise ModelNotUsable(
            f"layer {layer_idx} keeps a recurrent state, and this engine's slots hold attention layers only; "
            "serve a model whose layers all attend"
        )

    get_recurrent_state = get_conv_state


class ServingView(PassView):
    """B slots, T rows each, at the positions that follow what each slot holds."""

    def __init__(self, store: KeyValueStore, *, layers: int, slots: Sequence[int], starts: Sequence[int]) -> None:
        super().__init__(layers=layers, seen_tokens=max(starts))
        self._store = store
        self._places = tuple(zip(slots, starts, strict=True))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Write the rows' keys and values, then attend slot by slot."""
        rows = key.shape[2]
        attended = []
        for i, (slot, start) in enumerate(self._places):
            self._store.write(layer, slot=slot, start=start, keys=key[i], values=value[i])
            keys, values = self._store.read(layer, slot=slot, stop=start + rows)
            attended.append(attend(query[i : i + 1], keys, values, form))
        return attended[0] if len(attended) == 1 else torch.cat(attended)


class LessonView(PassView):
    """One run after a served prefix. The prefix is read in place and is a constant; nothing is written."""

    def __init__(self, store: KeyValueStore, *, layers: int, slot: int, prefix_tokens: int) -> None:
        super().__init__(layers=layers, seen_tokens=prefix_tokens)
        self._store = store
        self._slot = slot
        self._prefix_tokens = prefix_tokens

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Attend over the prefix as served and the run's own keys and values."""
        if self._prefix_tokens:
            keys, values = self._store.read(layer, slot=self._slot, stop=self._prefix_tokens)
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
        return attend(query, key, value, form)
