"""Any transformers causal LM, run layer by layer from recorded layer calls.

Letters: `B` sequences, `T` rows of each, `H` hidden size, `V` vocabulary.

- Every decoder layer's `forward` is replaced by a recorder that keeps its arguments and returns the hidden
  states unchanged. One run of the model through the recorders yields, for every layer, the exact call
  (positions, rotary tables, cache); calling the layers by hand from that record is the model's own forward.
- Attention goes through the view of the pass in hand, by an attention function registered for this model
  alone; no mask is ever built, since the view knows what each row may see.
- The head is the causal LM's own forward around a decoder that hands back given states, so that scaling and
  soft capping of logits are the family's.
- Nothing here is shared between two models, and `close` leaves the model and the registry as they were.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.attention import AttentionForm
from engine.cache import PassView
from engine.errors import ModelNotUsable
from engine.recurrent import RECURRENT_FAMILIES

_serial = count()


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One layer's recorded arguments, less the hidden states."""

    layer: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A pass ready to be run: the hidden states that enter the first layer [B, T, H], and every layer's call."""

    entry: Tensor
    calls: tuple[LayerCall, ...]
    view: PassView


class LayeredModel:
    """Owns the loop over a model's layers.

    Raises:
        ModelNotUsable: the decoder has no list of layers, what follows the layers isn't one norm, or the layers
            are recurrent and the family is not one whose states this engine is known to carry.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self.recurrent = _keeps_recurrent_states(model)
        self.decoder = _find_decoder(model)
        self.layers = cast(nn.ModuleList, self.decoder.layers)
        self.norm = _find_final_norm(self.decoder)
        self._layer_forwards: list[Callable[..., Any]] = [layer.forward for layer in self.layers]
        self._decoder_forward: Callable[..., Any] = self.decoder.forward
        self._calls: list[LayerCall] = []
        self._head_states: Tensor | None = None
        self._view: PassView | None = None
        self._attention_before = model.config._attn_implementation
        self._attention_name = f"ridealong-{next(_serial)}"
        self._install()

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return cast(torch.device, self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The precision the hidden states are computed in."""
        return cast(torch.dtype, self.model.dtype)

    def record(self, tokens: Tensor, positions: Tensor, view: PassView) -> Program:
        """Record the layer calls of tokens [B, T] at positions [B, T] under `view`."""
        self._calls = []
        entry: list[Tensor] = []
        hook = self.layers[0].register_forward_pre_hook(
            lambda _module, args, kwargs: entry.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        try:
            self.decoder(input_ids=tokens, position_ids=positions, cache=view, use_cache=True)
        finally:
            hook.remove()
        calls, self._calls = tuple(self._calls), []
        return Program(entry=entry[0], calls=calls, view=view)

    def run_layer(self, program: Program, layer: int, hidden: Tensor) -> Tensor:
        """One layer's forward, from its recorded call, on hidden states [B, T, H]."""
        call = program.calls[layer]
        with self._seeing(program.view):
            output = self._layer_forwards[call.layer](hidden, *call.args, **call.kwargs)
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)

    def run(self, program: Program) -> Tensor:
        """All layers and the final norm: hidden states [B, T, H] ready for the head."""
        hidden = program.entry
        for layer in range(len(program.calls)):
            hidden = self.run_layer(program, layer, hidden)
        return self.finish(hidden)

    def finish(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        normed: Tensor = self.norm(hidden)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """The head on final states [N, H]: logits [N, V] in float32."""
        self._head_states = states.unsqueeze(0)
        try:
            dummy = torch.zeros(1, states.shape[0], dtype=torch.long)
            logits: Tensor = self.model(input_ids=dummy, use_cache=False).logits
        finally:
            self._head_states = None
        return logits[0].float()

    def close(self) -> None:
        """Put the model's own forwards and attention back."""
        for layer in self.layers:
            layer.__dict__.pop("forward", None)
        self.decoder.__dict__.pop("forward", None)
        self.model.config._attn_implementation = self._attention_before
        ALL_ATTENTION_FUNCTIONS.pop(self._attention_name, None)

    def _install(self) -> None:
        for index, layer in enumerate(self.layers):
            layer.forward = self._recorder(index)
        self.decoder.forward = self._decoder
        ALL_ATTENTION_FUNCTIONS[self._attention_name] = self._attention
        self.model.config._attn_implementation = self._attention_name

    def _recorder(self, index: int) -> Callable[..., Tensor]:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            hidden, rest = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
            self._calls.append(LayerCall(index, rest, kwargs))
            return cast(Tensor, hidden)

        return forward

    def _decoder(self, *args: Any, **kwargs: Any) -> Any:
        if self._head_states is None:
            return self._decoder_forward(*args, **kwargs)
        return MoeModelOutputWithPast(last_hidden_state=self._head_states)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        assert self._view is not None, "a layer attends outside a pass"
        assert attention_mask is None, "a view decides what is seen, not a mask"
        if kwargs.get("position_bias") is not None:
            raise ModelNotUsable("this engine does not attend with a position bias; serve a model without one")
        form = AttentionForm(
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=kwargs.get("sliding_window"),
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux"),
        )
        attended = self._view.attend(int(module.layer_idx), query, key, value, form)  # type: ignore[arg-type]
        return attended.transpose(1, 2).contiguous(), None

    @contextmanager
    def _seeing(self, view: PassView) -> Iterator[None]:
        self._view = view
        try:
            yield
        finally:
            self._view = None


def _keeps_recurrent_states(model: PreTrainedModel) -> bool:
    """Does any layer hand on more than keys and values?"""
    if not model._is_stateful:
        layers = DynamicCache(config=model.config).layers
        if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers):
            return False
    family = model.config.get_text_config().model_type
    if family not in RECURRENT_FAMILIES:
        raise ModelNotUsable(
            f"{type(model).__name__} keeps recurrent states, and its family {family} is not one that this engine "
            f"is known to serve rightly; give a model that attends in every layer, or one of these families: "
            f"{', '.join(sorted(RECURRENT_FAMILIES))}"
        )
    return True


def _find_decoder(model: PreTrainedModel) -> nn.Module:
    decoder = model.base_model
    if decoder is model or not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ModelNotUsable(
            f"{type(model).__name__} has no decoder with a list of layers; "
            "give a decoder-only causal language model of transformers"
        )
    return decoder


def _find_final_norm(decoder: nn.Module) -> nn.Module:
    """The one direct child of the decoder that is neither embedding, layers nor rotary table: its last norm."""
    norms = [child for name, child in decoder.named_children() if name.endswith(("norm", "norm_f"))]
    if len(norms) != 1:
        names = [name for name, _ in decoder.named_children()]
        raise ModelNotUsable(f"expected one norm after the layers of {type(decoder).__name__}, found {names}")
    return norms[0]
