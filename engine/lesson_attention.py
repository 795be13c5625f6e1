"""Attention of a lesson's rows over two parts: the served prefix, a constant, and the run's own rows.

Letters: `K` key heads, `G` query heads for each, `R` query rows, `P` prefix keys, `N` run keys (the last R of
them stand at the queries' own positions), `D` head size, `T` keys of a tile.

- The prefix is read in place, a tile at a time: it is neither copied nor joined to the run, and nothing that
  is kept grows with it. Its scores are computed again in the backward pass.
- Keys and values of the prefix get no gradient, and none is computed for them.
- The parts are merged by their log-sum-exp, as in FlashAttention (Dao et al., 2022): exact, not approximate.
- A layer with a sliding window reads only the tiles that its rows can see.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention import AttentionForm, visible

PREFIX_TILE = 512
"""Keys of a prefix tile: scores of 64 rows of 9 heads then take 1.2 MB, which stays in the cache of one core."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some keys and values [K, T, D], and which of them each row sees: bool [G × R, T], or None for all."""

    keys: Tensor
    values: Tensor
    seen: Tensor | None
    of_run: bool = False


def attend_lesson(
    query: Tensor, run: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor] | None, form: AttentionForm
) -> Tensor:
    """Attention of query [1, K × G, R, D] over prefix [1, K, P, D] (a constant) and run [1, K, N, D].

    Differentiable in the query and in the run's keys and values; returns [1, K × G, R, D of the values].
    """
    keys, values = run if prefix is None else prefix
    if prefix is None:
        keys, values = keys[:, :, :0].detach(), values[:, :, :0].detach()
    attended: Tensor = _LessonAttention.apply(query, *run, keys, values, form)  # type: ignore[no-untyped-call]
    return attended


class _LessonAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        run_keys: Tensor,
        run_values: Tensor,
        prefix_keys: Tensor,
        prefix_values: Tensor,
        form: AttentionForm,
    ) -> Tensor:
        rows = _grouped(query, run_keys.shape[1])  # [K, G × R, D]
        peak, total = _start(rows, form)
        mixed = rows.new_zeros(*rows.shape[:2], run_values.shape[3])
        for part in _parts(query, run_keys, run_values, prefix_keys, prefix_values, form):
            scores = _visible_scores(_scores(rows, part, form), part)
            higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights, shrink = torch.exp(scores - higher), torch.exp(peak - higher)
            total = total * shrink + weights.sum(-1, keepdim=True)
            mixed = mixed * shrink + weights @ part.values.to(rows.dtype)
            peak = higher
        output = (mixed / total).to(query.dtype).view(*query.shape[:3], -1)
        ctx.form = form
        kept = (query, run_keys, run_values, prefix_keys, prefix_values, output, peak + total.log())
        ctx.save_for_backward(*kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, run_keys, run_values, prefix_keys, prefix_values, output, normalizer = ctx.saved_tensors
        form, heads = ctx.form, run_keys.shape[1]
        rows, out = _grouped(query, heads), _grouped(gradient, heads)
        mean = (out * _grouped(output, heads)).sum(-1, keepdim=True)
        to_query, to_keys, to_values = torch.zeros_like(rows), run_keys, run_values
        for part in _parts(query, run_keys, run_values, prefix_keys, prefix_values, form):
            scores = _scores(rows, part, form)
            weights = torch.exp(_visible_scores(scores, part) - normalizer)
            slope = weights * (out @ part.values.to(rows.dtype).transpose(1, 2) - mean) * form.scale
            if form.softcap is not None:
                slope = slope * (1 - (scores / form.softcap).square())
            to_query += slope @ part.keys.to(rows.dtype)
            if part.of_run:
                to_keys = (slope.transpose(1, 2) @ rows)[None].to(run_keys.dtype)
                to_values = (weights.transpose(1, 2) @ out)[None].to(run_values.dtype)
        return to_query.view_as(query).to(query.dtype), to_keys, to_values, None, None, None


def _grouped(heads_first: Tensor, key_heads: int) -> Tensor:
    """[1, K × G, R, D] as [K, G × R, D], in float32 or better: what shares a key head shares a product."""
    wide = heads_first.dtype if heads_first.dtype == torch.float64 else torch.float32
    return heads_first.to(wide).reshape(key_heads, -1, heads_first.shape[3])


def _start(rows: Tensor, form: AttentionForm) -> tuple[Tensor, Tensor]:
    """The running maximum and sum [K, G × R, 1] before any key: a sink's score and 1, or the least and 0."""
    if form.sinks is None:
        peak = rows.new_full((*rows.shape[:2], 1), torch.finfo(rows.dtype).min)
        return peak, torch.zeros_like(peak)
    groups = form.sinks.numel() // rows.shape[0]
    sinks = form.sinks.to(rows.dtype).view(rows.shape[0], groups, 1)
    peak = sinks.expand(-1, -1, rows.shape[1] // groups).reshape(*rows.shape[:2], 1)
    return peak, torch.ones_like(peak)


def _scores(rows: Tensor, part: _Part, form: AttentionForm) -> Tensor:
    """Scores [K, G × R, T], capped where the layer caps them, before anything is masked."""
    scores = rows @ part.keys.to(rows.dtype).transpose(1, 2) * form.scale
    return scores if form.softcap is None else torch.tanh(scores / form.softcap) * form.softcap


def _visible_scores(scores: Tensor, part: _Part) -> Tensor:
    return scores if part.seen is None else scores.masked_fill(~part.seen, -torch.inf)


def _parts(
    query: Tensor,
    run_keys: Tensor,
    run_values: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    form: AttentionForm,
) -> Iterator[_Part]:
    """The prefix's tiles that any row sees, then the run."""
    rows, run, prefix = query.shape[2], run_keys.shape[2], prefix_keys.shape[2]
    groups = query.shape[1] // run_keys.shape[1]
    first_row = prefix + run - rows
    first = 0 if form.window is None else max(0, first_row - form.window + 1)
    for start in range(first, prefix, PREFIX_TILE):
        stop = min(start + PREFIX_TILE, prefix)
        seen = None
        if form.window is not None and start <= prefix + run - 1 - form.window:
            positions = torch.arange(first_row, prefix + run)[:, None]
            seen = (torch.arange(start, stop) > positions - form.window).repeat(groups, 1)
        yield _Part(prefix_keys[0, :, start:stop], prefix_values[0, :, start:stop], seen)
    causal = visible(rows, run, form.window).repeat(groups, 1)
    yield _Part(run_keys[0], run_values[0], causal, of_run=True)
