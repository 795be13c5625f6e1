"""Attention of a lesson's rows over two parts: the served prefix, a constant, and the run's own rows.

Letters: `K` key heads, `G` query heads for each, `R` query rows, `P` prefix keys, `N` run keys (the last R of
them stand at the queries' own positions), `D` head size, `T` keys of a tile, `M` = G × R.

- The prefix is read in place, a tile at a time: it is neither copied nor joined to the run, and nothing that
  is kept grows with it. Its scores are computed again in the backward pass.
- Keys and values of the prefix get no gradient, and none is computed for them.
- The parts are merged by their log-sum-exp, as in FlashAttention (Dao et al., 2022): exact, not approximate.
- Key heads are taken one by one: what queries share a key head share a product.
- Scores are in bits: powers of 2 take a quarter of the time of powers of e (192 × 1,024 scores, float32 on two
  AMD EPYC cores: 0.02 ms against 0.06), and log2 e goes into the scale of the queries.
- A layer with a sliding window reads only the tiles that its rows can see.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engine.attention import AttentionForm, visible
from engine.products import times, times_transposed

PREFIX_TILE = 1024
"""Keys of a prefix tile: scores of 64 rows of three heads then take 0.8 MB. Half of it costs a lesson a tenth more
time in small operations, twice as much gains nothing more."""

BITS = 1 / math.log(2)
"""Bits of a nat."""

LEAST_WEIGHT = 1e-30
"""Attention weights at most this are 0: beside the largest, which is 1, they are far below float32's resolution,
and their products would be denormal numbers, which are many times slower to add and multiply."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Keys and values [T, D] of one head, and which of them each row does not see: bool [M, T], or None."""

    keys: Tensor
    values: Tensor
    hidden: Tensor | None
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
        heads = _Heads(query, run_keys, run_values, prefix_keys, prefix_values, form)
        rows = heads.rows(query) * _row_scale(form)  # [K, M, D]
        output = rows.new_empty(*rows.shape[:2], run_values.shape[3])
        normalizer = rows.new_empty(*rows.shape[:2], 1)
        for head in range(rows.shape[0]):
            output[head], normalizer[head] = _attend_head(rows[head], heads.parts(head), heads.start(head), form)
        # Rows first in memory: the layer's output projection reads, and keeps, this very tensor.
        attended = query.new_empty(1, query.shape[2], query.shape[1], run_values.shape[3]).transpose(1, 2)
        attended.copy_(output.view_as(attended))
        ctx.form = form
        # Not saved as the others are: the slot's storage is written to beside the prefix, whose rows are pinned.
        ctx.prefix = (prefix_keys, prefix_values)
        ctx.save_for_backward(query, run_keys, run_values, attended, normalizer)
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, run_keys, run_values, attended, normalizer = ctx.saved_tensors
        prefix_keys, prefix_values = ctx.prefix
        heads = _Heads(query, run_keys, run_values, prefix_keys, prefix_values, ctx.form)
        rows, out = heads.rows(query) * _row_scale(ctx.form), heads.rows(gradient)
        mean = (out * heads.rows(attended)).sum(-1, keepdim=True)  # [K, M, 1]
        to_query = torch.empty_like(rows)
        to_keys, to_values = (torch.empty_like(run[0], dtype=rows.dtype) for run in (run_keys, run_values))
        for head in range(rows.shape[0]):
            slopes = _Slopes(rows[head], out[head], mean[head], normalizer[head], ctx.form)
            to_query[head], to_keys[head], to_values[head] = slopes.of(heads.parts(head))
        to_keys *= ctx.form.scale / _row_scale(ctx.form)
        return (
            (to_query * ctx.form.scale).view_as(query).to(query.dtype),
            to_keys[None].to(run_keys.dtype),
            to_values[None].to(run_values.dtype),
            None,
            None,
            None,
        )


@dataclass(frozen=True)
class _Heads:
    """The inputs of one attention, to be taken apart by key head."""

    query: Tensor
    run_keys: Tensor
    run_values: Tensor
    prefix_keys: Tensor
    prefix_values: Tensor
    form: AttentionForm

    @cached_property
    def hidden_run(self) -> Tensor:
        """Which of the run's keys each row of a key head does not see: bool [M, N]."""
        seen = visible(self.query.shape[2], self.run_keys.shape[2], self.form.window)
        return ~seen.repeat(self.groups, 1)

    @property
    def groups(self) -> int:
        """Query heads for each key head."""
        return self.query.shape[1] // self.run_keys.shape[1]

    def rows(self, heads_first: Tensor) -> Tensor:
        """Rows [1, K × G, R, D] as [K, M, D], in float32 or better."""
        wide = heads_first.dtype if heads_first.dtype == torch.float64 else torch.float32
        return heads_first.to(wide).reshape(self.run_keys.shape[1], -1, heads_first.shape[3])

    def start(self, head: int) -> tuple[Tensor, Tensor]:
        """A head's running maximum and sum [M, 1] before any key: the sinks' scores and 1, or the least and 0."""
        wide = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        if self.form.sinks is None:
            peak = torch.full((self.groups * self.query.shape[2], 1), torch.finfo(wide).min, dtype=wide)
            return peak, torch.zeros_like(peak)
        sinks = self.form.sinks.to(wide).view(-1, self.groups)[head]
        peak = sinks.repeat_interleave(self.query.shape[2])[:, None] * BITS
        return peak, torch.ones_like(peak)

    def parts(self, head: int) -> Iterator[_Part]:
        """A head's prefix tiles that any row sees, then its run."""
        rows, run, prefix = self.query.shape[2], self.run_keys.shape[2], self.prefix_keys.shape[2]
        window, first_row = self.form.window, prefix + run - rows
        for start in range(0 if window is None else max(0, first_row - window + 1), prefix, PREFIX_TILE):
            stop, hidden = min(start + PREFIX_TILE, prefix), None
            if window is not None and start <= prefix + run - 1 - window:
                positions = torch.arange(first_row, prefix + run)[:, None]
                hidden = (torch.arange(start, stop) <= positions - window).repeat(self.groups, 1)
            yield _part(self.prefix_keys[0, head, start:stop], self.prefix_values[0, head, start:stop], hidden)
        yield _part(self.run_keys[0, head], self.run_values[0, head], self.hidden_run, of_run=True)


def _part(keys: Tensor, values: Tensor, hidden: Tensor | None, *, of_run: bool = False) -> _Part:
    wide = keys.dtype if keys.dtype == torch.float64 else torch.float32
    return _Part(keys.to(wide).contiguous(), values.to(wide).contiguous(), hidden, of_run)


def _attend_head(
    rows: Tensor, parts: Iterator[_Part], start: tuple[Tensor, Tensor], form: AttentionForm
) -> tuple[Tensor, Tensor]:
    """Attention of scaled rows [M, D] over one head's parts: mixed values [M, D], log-sum-exp [M, 1] in bits."""
    peak, total = start
    mixed: Tensor | float = 0.0
    for part in parts:
        scores = _hide(_scores(rows, part, form), part)
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights, shrink = _weights(scores, higher), torch.exp2(peak - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + times(weights, part.values)
        peak = higher
    return mixed / total, peak + total.log2()


@dataclass(frozen=True, slots=True)
class _Slopes:
    """One head's backward pass: scaled rows, output gradient [M, D], its mean and the normalizer [M, 1]."""

    rows: Tensor
    out: Tensor
    mean: Tensor
    normalizer: Tensor
    form: AttentionForm

    def of(self, parts: Iterator[_Part]) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of scaled rows [M, D] and of the run's keys and values [N, D]."""
        to_rows = torch.zeros_like(self.rows)
        to_keys = to_values = self.rows
        for part in parts:
            scores = _scores(self.rows, part, self.form)
            bend = None if self.form.softcap is None else 1 - (scores / (self.form.softcap * BITS)).square_()
            weights = _weights(_hide(scores, part), self.normalizer)
            slope = times_transposed(self.out, part.values).sub_(self.mean).mul_(weights)
            if bend is not None:
                slope *= bend
            to_rows += times(slope, part.keys)
            if part.of_run:
                to_keys, to_values = slope.t() @ self.rows, weights.t() @ self.out
        return to_rows, to_keys, to_values


def _scores(rows: Tensor, part: _Part, form: AttentionForm) -> Tensor:
    """Scores [M, T] in bits of scaled rows, capped where the layer caps them, before anything is masked."""
    scores = times_transposed(rows, part.keys)
    return scores if form.softcap is None else torch.tanh(scores / form.softcap) * (form.softcap * BITS)


def _hide(scores: Tensor, part: _Part) -> Tensor:
    """The scores with those of hidden keys put to −∞, in place."""
    return scores if part.hidden is None else scores.masked_fill_(part.hidden, -torch.inf)


def _weights(scores: Tensor, normalizer: Tensor) -> Tensor:
    """2 to the power of scores less the normalizer, in which what cannot count is 0; in the scores' place."""
    return torch.threshold_(scores.sub_(normalizer).exp2_(), LEAST_WEIGHT, 0.0)


def _row_scale(form: AttentionForm) -> float:
    """What queries are multiplied by: scores in bits, but in nats where a cap is still to be put on them."""
    return form.scale if form.softcap is not None else form.scale * BITS
