"""The least a lesson could take on this machine: its floating-point operations at the measured matrix rate.

- Counted: every linear layer and the head, forward and the gradient of their input (4 operations a weight and
  row), the adapter's own (6), and attention over the prefix (scores, mix and the gradients of both: 8 a score
  and channel).
- Not counted, though ours does it: the forward again in the backward, the KL, norms, and reading memory.
- The rate is that of a oneDNN-packed float32 product of R rows, the fastest the machine has.
"""

import statistics
import time

import torch
from torch import nn
from transformers import PreTrainedModel

from engine.lora import RideLinear

RATE_SAMPLES = 25


def floor_seconds(model: PreTrainedModel, *, prefix: int, rows: int) -> float:
    """The lesson's operations over the machine's rate. For models whose layers all attend."""
    return _operations(model, prefix=prefix, rows=rows) / _operations_per_second(model, rows)


def _operations(model: PreTrainedModel, *, prefix: int, rows: int) -> int:
    config = model.config.get_text_config()
    adapted = [module for module in model.modules() if isinstance(module, RideLinear)]
    weights = sum(layer.in_features * layer.out_features for layer in adapted)
    weights += int(config.vocab_size) * int(config.hidden_size)
    low_rank = sum(
        rank * (layer.in_features + layer.out_features) for layer in adapted for rank in layer.r.values()
    )
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scored = config.num_hidden_layers * config.num_attention_heads * head_size * rows * (prefix + rows // 2)
    return int(4 * rows * weights + 6 * rows * low_rank + 8 * scored)


def _operations_per_second(model: PreTrainedModel, rows: int) -> float:
    config = model.config.get_text_config()
    width, wide = int(config.hidden_size), int(getattr(config, "intermediate_size", config.hidden_size))
    linear, x = nn.Linear(width, wide, bias=False).requires_grad_(False), torch.randn(rows, width)
    packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight, rows)
    seconds = []
    for _ in range(RATE_SAMPLES):
        started = time.perf_counter()
        torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        seconds.append(time.perf_counter() - started)
    return 2 * rows * width * wide / statistics.median(seconds)
