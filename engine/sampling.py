"""From a row's logits to the next token. The filters are transformers' own; the order is bias, penalties,
constraint, then temperature, top_k, top_p, min_p, typical_p.

- Temperature 0, or so small that it comes to the same, is greedy: the first of the largest logits.
- With a seed, a turn's tokens depend on its logits alone, whoever else is served.
- Logits are never written to: what is added, taken off or masked is so in a copy, and only where it is asked for.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from engine.constraint import Constraint
from engine.errors import EngineError

GREEDY_BELOW = 1e-3
"""Below this temperature logits divided by it leave float32's range, and the largest has all the chance anyway."""


class NotDrawable(EngineError):
    """There is no token to draw: the logits are not numbers, or nothing is left of them."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn's tokens are drawn. top_k 0, top_p 1, min_p 0 and typical_p 1 switch the filter off.

    `presence_penalty` is taken off the logit of every token the reply has, `frequency_penalty` once for each time
    it has it (OpenAI's). `repetition_penalty` divides the logit of every token of prompt and reply, or multiplies
    it where it is negative (Keskar et al. 2019, arXiv:1909.05858); 1 switches it off. `logit_bias` is added to
    the logits of the token ids it names; −inf forbids one.

    `logprobs` asks for each token's log-probability and those of that many most likely ones; None asks for none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log-probability, and the most likely tokens with theirs, the likeliest first.

    They are of the model's own distribution, the log-softmax of its raw logits: no bias, penalty, constraint,
    temperature or filter is in them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws one turn's tokens."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt: Sequence[int] = (),
        constraint: Callable[[], Constraint] | None = None,
    ) -> None:
        self._greedy = sampling.temperature < GREEDY_BELOW
        self._filters = LogitsProcessorList() if self._greedy else _filters(sampling)
        self._penalties = _Penalties(sampling, prompt) if _penalised(sampling) else None
        self._make_constraint = constraint
        self._constraint: Constraint | None = None
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    @property
    def ended(self) -> bool:
        """Does the constraint let nothing follow the tokens drawn?"""
        return self._constraint is not None and self._constraint.ended

    def draw(self, logits: Tensor) -> int:
        """The next token id, from logits [V].

        Raises:
            NotDrawable: a logit is not a number, or none is finite; bias and constraint leave none.
            ConstraintFailed: the constraint cannot say what may come.
        """
        if bool(torch.isnan(logits).any()) or not bool(torch.isfinite(logits).any()):
            raise NotDrawable("the model's logits are not finite; roll the agent's adapter back")
        token = self._pick(self._adjusted(logits))
        if self._penalties is not None:
            self._penalties.take(token)
        if self._constraint is not None:
            self._constraint.take(token)
        return token

    def _adjusted(self, logits: Tensor) -> Tensor:
        """The logits after bias, penalties and constraint; the same tensor when there is none."""
        if self._penalties is None and self._make_constraint is None:
            return logits
        adjusted = self._penalties.applied(logits) if self._penalties is not None else logits.clone()
        if self._make_constraint is not None:
            self._constraint = self._constraint or self._make_constraint()
            self._constraint.mask(adjusted)
        if not bool(torch.isfinite(adjusted).any()):
            raise NotDrawable("no token is left to draw: constraint and logit_bias forbid all of them")
        return adjusted

    def _pick(self, logits: Tensor) -> int:
        if self._greedy:
            return int(logits.argmax())
        filtered = self._filters(torch.empty(1, 0, dtype=torch.long), logits[None])  # type: ignore[arg-type]
        chances = torch.softmax(filtered[0], dim=-1)
        return int(torch.multinomial(chances, 1, generator=self._generator))


def token_logprob(logits: Tensor, token: int, *, top: int) -> TokenLogprob:
    """The log-probability of a token under raw logits [V], with those of the `top` most likely tokens."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, tokens = logprobs.topk(min(top, len(logprobs)))
    return TokenLogprob(token, float(logprobs[token]), tuple(zip(tokens.tolist(), values.tolist(), strict=True)))


class _Penalties:
    """The bias on a turn's logits, and the penalties on tokens that are there already."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._biased = torch.tensor([token for token, _ in sampling.logit_bias], dtype=torch.long)
        self._bias = torch.tensor([bias for _, bias in sampling.logit_bias])
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._times: Counter[int] = Counter()
        penalty = float(sampling.repetition_penalty)
        self._repetition = RepetitionPenaltyLogitsProcessor(penalty) if penalty != 1 else None
        self._there = torch.tensor([sorted(set(prompt))], dtype=torch.long)  # [1, distinct tokens]

    def applied(self, logits: Tensor) -> Tensor:
        """A copy of logits [V] with bias and penalties."""
        logits = logits.index_add(0, self._biased, self._bias)
        if self._repetition is not None:
            logits = self._repetition(self._there, logits[None])[0]
        if self._times and (self._presence or self._frequency):
            tokens, times = torch.tensor(list(self._times)), torch.tensor(list(self._times.values()))
            logits.index_add_(0, tokens, self._presence + self._frequency * times.float(), alpha=-1)
        return logits

    def take(self, token: int) -> None:
        """The reply has one more token."""
        self._times[token] += 1
        if self._repetition is not None and self._times[token] == 1:
            self._there = torch.cat((self._there, torch.tensor([[token]])), dim=1)


def _penalised(sampling: Sampling) -> bool:
    penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
    return bool(penalties or sampling.logit_bias)


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
    if sampling.typical_p < 1:
        filters.append(TypicalLogitsWarper(sampling.typical_p))
    return filters
