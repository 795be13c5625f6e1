"""Scaled dot-product attention of served rows over keys that stand at consecutive positions.

Letters: `T` query rows, `N` keys (the last T of them stand at the queries' own positions), `Q` query heads,
`K` key heads (Q a multiple of K), `D` head size.

- Causal, aligned to the end: query t sees keys 0 … N − T + t, and only the last `window` of them if there is one.
- The plain case goes through torch's fused kernel; sinks and soft capping, which it lacks, through plain
  operations with the softmax in float32.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How one layer attends: the score's scale, the sliding window in tokens, the soft cap, the sinks [Q]."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def attend(query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
    """Attention of query [1, Q, T, D] over keys and values [1, K, N, D]; returns [1, Q, T, D]."""
    rows, total = query.shape[2], keys.shape[2]
    assert rows <= total, f"{rows} query rows but {total} keys"
    if form.window is not None and total > form.window + rows - 1:
        first = total - (form.window + rows - 1)
        keys, values = keys[:, :, first:], values[:, :, first:]
    if form.softcap is not None or form.sinks is not None:
        return _attend_plainly(query, keys, values, form)
    mask = None if _is_plain(rows, keys.shape[2], form) else visible(rows, keys.shape[2], form.window)
    return F.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and rows > 1,
        scale=form.scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


def attend_decode(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, form: AttentionForm) -> Tensor:
    """One row for each of B slots together: query [B, Q, 1, D], keys and values [B, K, N, D], seen [B, 1, 1, N].

    Query heads that share a key head are taken as rows of it. Returns [B, Q, 1, D].
    """
    assert form.softcap is None, "capped scores are attended slot by slot"
    assert form.sinks is None, "sinks are attended slot by slot"
    batch, heads, _, size = query.shape
    rows = query.view(batch, keys.shape[1], heads // keys.shape[1], size)
    mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen, scale=form.scale)
    return mixed.reshape(batch, heads, 1, -1)


def visible(rows: int, total: int, window: int | None) -> Tensor:
    """Which of `total` keys each of the last `rows` positions sees: bool [T, N]."""
    seen = torch.ones(rows, total, dtype=torch.bool).tril(total - rows)
    return seen if window is None else seen.triu(total - rows - window + 1)


def _is_plain(rows: int, total: int, form: AttentionForm) -> bool:
    windowed = form.window is not None and total > form.window
    return not windowed and (rows == 1 or rows == total)


def _attend_plainly(query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = (query @ keys.transpose(2, 3)).float() * form.scale  # [1, Q, T, N]
    if form.softcap is not None:
        scores = torch.tanh(scores / form.softcap) * form.softcap
    seen = visible(query.shape[2], keys.shape[2], form.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if form.sinks is not None:
        sink = form.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values
