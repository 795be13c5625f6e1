"""Products of activations, through oneDNN where it can be had.

For the shapes of a lesson's attention (some dozen to some hundred rows against a few hundred keys of 64) oneDNN's
product takes half the time of torch's: 192 × 64 by 64 × 512, float32 on two AMD EPYC cores, median of 40, 0.04 ms
against 0.08. A call of it takes 0.011 ms beside the product, so that small products are torch's. Rows that lie
apart in memory send it down a path a hundred times slower, so it is used on matrices that are contiguous, and on
their transposes.
"""

import torch
from torch import Tensor

ONEDNN_LEAST = 1_500_000
"""Multiplications from which oneDNN is the faster: 192 × 128 of 64 take the same 0.019 ms by both."""


def times_transposed(left: Tensor, right: Tensor) -> Tensor:
    """Left [M, D] times the transpose of right [N, D]: [M, N]."""
    return _product(left, right) if _suits_onednn(left, right, right.shape[0]) else left @ right.t()


def times(left: Tensor, right: Tensor) -> Tensor:
    """Left [M, N] times right [N, D]: [M, D]."""
    return _product(left, right.t()) if _suits_onednn(left, right, right.shape[1]) else left @ right


def _suits_onednn(left: Tensor, right: Tensor, columns: int) -> bool:
    if left.numel() * columns < ONEDNN_LEAST:
        return False
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu"
    dense = left.is_contiguous() and right.is_contiguous()
    return plain and dense and bool(torch.backends.mkldnn.is_available())


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return product
