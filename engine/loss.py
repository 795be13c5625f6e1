"""The lesson's loss: weighted cross-entropy by target index, on slices of rows, with its gradient.

Letters: `R` rows of the run, `H` hidden size, `V` vocabulary.

    loss = Σ wᵢ · (−log softmax(zᵢ)[tᵢ]) / (number of rows that have a target)

- The divisor is the number of labelled rows, not Σw: weights 2, 2 are twice the step of weights 1, 1.
- A row of weight 0, or without a target, never meets the head: its gradient is exactly zero.
- At most `SLICE_BYTES` of logits exist at once, whatever R and V are; none is kept, and their gradient is made
  in the place of their log-softmax: wᵢ · (softmax(zᵢ) − one at tᵢ), over the divisor.
- Beside the loss, the same slices give KL(served ‖ shadow), the mean over the rows that were weighed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

SLICE_BYTES = 5 * 2**20
"""Logits held at once, at most; slices are as even as can be. Half a slice is a piece of a walk, which those who
are served may wait for: 22 rows of a vocabulary of 49,152 take some 8 ms each way on two cores."""

BLOCK_BYTES = 2**20
"""Logits that are turned into probabilities at a time: what one core's cache holds."""

Head = Callable[[Tensor], Tensor]
"""States after the last layer [n, H] to logits [n, V] in float32."""


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Targets and weights of a run: row i should predict targets[i], with weights[i]."""

    targets: tuple[int | None, ...]
    weights: tuple[float, ...]

    @property
    def divisor(self) -> int:
        """How many rows have a target."""
        return sum(target is not None for target in self.targets)

    @property
    def weighed(self) -> tuple[int, ...]:
        """Indices of the rows that take part: a target, and a weight above 0."""
        pairs = enumerate(zip(self.targets, self.weights, strict=True))
        return tuple(i for i, (target, weight) in pairs if target is not None and weight > 0)


@dataclass(frozen=True, slots=True)
class SliceLoss:
    """What one slice gave: its share of the loss, of the KL (a sum over rows), and each row's own loss."""

    loss: float
    kl_sum: float
    row_losses: dict[int, float]


def loss_slices(
    states: Tensor,
    gradient: Tensor,
    rows: LabelledRows,
    head: Head,
    *,
    vocabulary: int,
    served: Tensor | None = None,
    served_head: Head | None = None,
    slice_bytes: int = SLICE_BYTES,
) -> Iterator[SliceLoss | None]:
    """Loss slice by slice; fills `gradient` [R, H] with d loss / d states, zero where a row takes no part.

    Each slice is two pieces of work: its loss, which is given, and then its gradient, after which None is.

    Args:
        states: what the last layer handed on for the run under the shadow, [R, H].
        gradient: filled in place, [R, H].
        rows: targets and weights.
        head: states to logits, differentiable.
        vocabulary: V, which with `slice_bytes` sets the rows of a slice.
        served: the same rows' states as served, for the KL; without it the KL is 0.
        served_head: states as served to logits; the same as `head` unless the final norm is done already.
        slice_bytes: the most bytes of float32 logits held at once.
    """
    gradient.zero_()
    for chosen in _slices(rows, slice_bytes // (4 * vocabulary)):
        as_served = None if served is None else partial(served_head or head, served[list(chosen)])
        yield from _one_slice(states, gradient, rows, head, chosen, as_served)


def plain_loss_slices(
    states: Tensor, rows: LabelledRows, head: Head, *, vocabulary: int, slice_bytes: int = SLICE_BYTES
) -> Iterator[SliceLoss]:
    """The same loss without gradient and KL, slice by slice; arguments as `loss_slices`."""
    for chosen in _slices(rows, slice_bytes // (4 * vocabulary)):
        index, targets = list(chosen), torch.tensor([rows.targets[i] for i in chosen])
        with torch.no_grad():
            losses = F.cross_entropy(head(states[index]), targets, reduction="none")
        own = dict(zip(chosen, losses.tolist(), strict=True))
        loss = math.fsum(rows.weights[i] * own[i] for i in chosen) / rows.divisor
        yield SliceLoss(loss=loss, kl_sum=0.0, row_losses=own)


def _slices(rows: LabelledRows, most: int) -> Iterator[Sequence[int]]:
    """The rows that take part, in slices as even as can be of at most so many, and at least one."""
    weighed = rows.weighed
    step = math.ceil(len(weighed) / math.ceil(len(weighed) / max(1, most))) if weighed else 1
    return (weighed[first : first + step] for first in range(0, len(weighed), step))


def _one_slice(
    states: Tensor,
    gradient: Tensor,
    rows: LabelledRows,
    head: Head,
    chosen: Sequence[int],
    as_served: Callable[[], Tensor] | None,
) -> Iterator[SliceLoss | None]:
    index = torch.tensor(chosen)
    targets = torch.tensor([rows.targets[i] for i in chosen])[:, None]
    weights = torch.tensor([rows.weights[i] for i in chosen])[:, None] / rows.divisor
    leaf = states[index].detach().requires_grad_()
    with torch.enable_grad():
        logits = head(leaf)  # [n, V]
    slope = torch.empty_like(logits)  # apart from the logits, which their graph may need
    losses, kl_sum = torch.empty_like(weights), 0.0
    served_logits = None if as_served is None else as_served()
    for part in _blocks(logits):
        losses[part] = _log_softmax(logits.detach()[part], slope[part]).gather(1, targets[part]).neg_()
        if served_logits is not None:
            kl_sum += _kl_sum(served_logits[part], slope[part])
        slope[part].exp_()
    del served_logits
    own = dict(zip(chosen, losses[:, 0].tolist(), strict=True))
    yield SliceLoss(loss=(losses * weights).sum().item(), kl_sum=kl_sum, row_losses=own)
    slope.mul_(weights).scatter_add_(1, targets, -weights)  # d loss / d logits
    logits.backward(slope)
    assert leaf.grad is not None
    gradient[index] = leaf.grad
    yield None


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Rows of logits [n, V], some at a time: what is done to them one after the other stays in the cache."""
    step = max(1, BLOCK_BYTES // (logits.element_size() * logits.shape[1]))
    return (slice(first, first + step) for first in range(0, logits.shape[0], step))


def _log_softmax(logits: Tensor, out: Tensor) -> Tensor:
    """The log-softmax of logits [n, V], into `out`."""
    return torch.log_softmax(logits, -1, out=out)


def _kl_sum(served_logits: Tensor, shadow: Tensor) -> float:
    """Σ over rows of KL(served ‖ shadow) in nats, from served logits and the shadow's log-softmax, both [n, V]."""
    served = torch.log_softmax(served_logits, -1)
    apart = served - shadow
    return torch.dot(served.exp_().flatten(), apart.flatten()).item()
