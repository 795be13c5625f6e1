"""Weights packed once for oneDNN, instead of packed again by every matrix product.

- A packed linear has no backward: a lane served from packed weights alone refuses every lesson.
- The plain weight is dropped, so packing costs no memory to keep.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.errors import ModelNotUsable
from engine.lora import AdapterBank

PACK_ROWS = 4
"""The row count the layout is chosen for: decode of a few slots, where packing anew costs the most."""


class PackedLinear(nn.Module):
    """`nn.Linear` for serving, from a packed weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACK_ROWS)

    def forward(self, x: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        """x [..., in] to [..., out]; no gradient passes."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return product


def pack_for_serving(model: PreTrainedModel, bank: AdapterBank) -> None:
    """Replace every adapted projection's weight and the head's by packed ones; the plain ones are dropped.

    Raises:
        ModelNotUsable: this build of torch has no oneDNN, or the weights are not float32.
    """
    if not torch.backends.mkldnn.is_available() or model.dtype is not torch.float32:
        raise ModelNotUsable(
            f"--repack serve needs float32 weights and a torch with oneDNN; here the weights are {model.dtype} "
            f"and oneDNN is {'there' if torch.backends.mkldnn.is_available() else 'missing'}; use --repack off"
        )
    for layer in bank.layers.values():
        layer.base_layer = PackedLinear(layer.base_layer)
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        model.set_output_embeddings(PackedLinear(head))
