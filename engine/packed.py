"""Weights packed once for oneDNN, instead of packed again by every matrix product.

- `serve` packs each weight once and drops the plain one. It has no backward: every lesson is refused.
- `both` packs the transpose too, which is what a gradient is multiplied by, so that learning runs on packed
  weights as well; the two packs take twice the plain weights' bytes.
- `auto` is `both` where the machine has the memory to spare, else `off`.
- Packed products are used at every row count. Measured on two AMD EPYC cores, float32, median of 25, plain over
  packed time: 576 × 1,536 at 1, 4, 64 and 1,024 rows 1.2, 3.5, 2.4 and 2.3; 576 × 49,152 at 1, 4 and 64 rows 3.1,
  4.9 and 3.6. Only 576 × 576 at one row is as fast plain (0.9), so there is no crossover worth a branch.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.errors import ModelNotUsable
from engine.lora import AdapterBank
from engine.memory import available_bytes

Repack = Literal["off", "serve", "both", "auto"]

PACK_ROWS = 64
"""The row count the layout is chosen for. Layouts for 4, 64 and 256 rows measure the same at every row count;
the one for a single row is up to twice as slow at more."""

SPARE_SHARE = 0.5
"""Of the memory that is free, `auto` takes half at most: the rest is for caches, lessons and everyone else."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What was packed: the mode that was picked, and the bytes of all packs."""

    mode: Literal["off", "serve", "both"]
    nbytes: int = 0


class _PackedProduct(torch.autograd.Function):
    """x Wᵀ from a pack of W; the gradient of x is that of the output times W, from a pack of Wᵀ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, transposed: Tensor, bias: Tensor | None) -> Tensor:
        ctx.transposed = transposed
        return _product(x, packed, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _product(gradient.contiguous(), ctx.transposed, None), None, None, None


class PackedLinear(nn.Module):
    """`nn.Linear` from packed weights; differentiable in its input if the transpose is packed too."""

    def __init__(self, linear: nn.Linear, *, learns: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach()
        self._packed = _pack(weight)
        self._transposed = _pack(weight.t().contiguous()) if learns else None

    def forward(self, x: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        """Map x [..., in] to [..., out]."""
        if self._transposed is None or not x.requires_grad:
            return _product(x, self._packed, self.bias)
        args = (x, self._packed, self._transposed, self.bias)
        return cast(Tensor, _PackedProduct.apply(*args))  # type: ignore[no-untyped-call]

    @property
    def nbytes(self) -> int:
        """Bytes of the packs: each holds one copy of the weight."""
        packs = 1 if self._transposed is None else 2
        return packs * self.in_features * self.out_features * self._packed.element_size()


def repack(model: PreTrainedModel, bank: AdapterBank, mode: Repack) -> Packing:
    """Replace the adapted projections' and the head's plain weights by packs, as the mode says.

    Raises:
        ModelNotUsable: packs were asked for and cannot be had here.
    """
    if mode == "auto":
        mode = "both" if _can_pack(model) and _has_room(model, bank) else "off"
    if mode == "off":
        return Packing("off")
    if not _can_pack(model):
        raise ModelNotUsable(
            f"--repack {mode} needs float32 weights and a torch with oneDNN; here the weights are {model.dtype} "
            f"and oneDNN is {'there' if torch.backends.mkldnn.is_available() else 'missing'}; use --repack off"
        )
    packs = [*_pack_projections(bank, learns=mode == "both"), *_pack_head(model, learns=mode == "both")]
    return Packing(mode, sum(pack.nbytes for pack in packs))


def _pack_projections(bank: AdapterBank, *, learns: bool) -> list[PackedLinear]:
    packs = []
    for layer in bank.layers.values():
        layer.base_layer = PackedLinear(layer.base_layer, learns=learns)
        packs.append(layer.base_layer)
    return packs


def _pack_head(model: PreTrainedModel, *, learns: bool) -> list[PackedLinear]:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return []
    pack = PackedLinear(head, learns=learns)
    model.set_output_embeddings(pack)
    return [pack]


def _can_pack(model: PreTrainedModel) -> bool:
    return bool(torch.backends.mkldnn.is_available()) and model.dtype is torch.float32


def _has_room(model: PreTrainedModel, bank: AdapterBank) -> bool:
    """Is there memory for two packs of every weight, on top of what is in use now?"""
    head = model.get_output_embeddings()
    linears = [layer.base_layer for layer in bank.layers.values()] + [head] * isinstance(head, nn.Linear)
    needed: int = 2 * sum(linear.weight.nbytes for linear in linears)
    return needed <= SPARE_SHARE * available_bytes()


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    return packed


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
