"""From a row's logits to the next token. The filters are transformers' own; the order is temperature, top_k,
top_p, min_p.

- Temperature 0, or so small that it comes to the same, is greedy: the first of the largest logits.
- With a seed, a turn's tokens depend on its logits alone, whoever else is served.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import EngineError

GREEDY_BELOW = 1e-3
"""Below this temperature logits divided by it leave float32's range, and the largest has all the chance anyway."""


class NotDrawable(EngineError):
    """There is no token to draw: the logits are not numbers."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn's tokens are drawn. top_k 0, top_p 1 and min_p 0 switch the filter off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


class Sampler:
    """Draws one turn's tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._greedy = sampling.temperature < GREEDY_BELOW
        self._filters = LogitsProcessorList() if self._greedy else _filters(sampling)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def draw(self, logits: Tensor) -> int:
        """The next token id, from logits [V].

        Raises:
            NotDrawable: a logit is not a number, or none is finite.
        """
        if bool(torch.isnan(logits).any()) or not bool(torch.isfinite(logits).any()):
            raise NotDrawable("the model's logits are not finite; roll the agent's adapter back")
        if self._greedy:
            return int(logits.argmax())
        filtered = self._filters(torch.empty(1, 0, dtype=torch.long), logits[None])  # type: ignore[arg-type]
        chances = torch.softmax(filtered[0], dim=-1)
        return int(torch.multinomial(chances, 1, generator=self._generator))


def _filters(sampling: Sampling) -> LogitsProcessorList:
    filters = LogitsProcessorList()
    if sampling.temperature != 1:
        filters.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k > 0:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        filters.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        filters.append(MinPLogitsWarper(sampling.min_p))
    return filters
