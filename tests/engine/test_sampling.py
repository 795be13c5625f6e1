"""How tokens are drawn."""

import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from engine.constraint import ConstraintFailed
from engine.sampling import NotDrawable, Sampler, Sampling, TokenLogprob, token_logprob

LOGITS = torch.tensor([0.0, 3.0, 2.0, 2.9, -1.0])
EVEN = torch.full((5,), 1.0)


def drawn(
    sampling: Sampling, count: int = 200, logits: Tensor = LOGITS, prompt: tuple[int, ...] = ()
) -> list[int]:
    sampler = Sampler(sampling, prompt=prompt)
    return [sampler.draw(logits) for _ in range(count)]


class Only:
    """A constraint that lets the tokens come in one order only."""

    def __init__(self, *tokens: int) -> None:
        self.left = list(tokens)

    @property
    def ended(self) -> bool:
        return not self.left

    def mask(self, logits: Tensor) -> None:
        allowed = logits[self.left[0]].clone()
        logits.fill_(-torch.inf)
        logits[self.left[0]] = allowed

    def take(self, token: int) -> None:
        if token != self.left.pop(0):
            raise ConstraintFailed(f"{token} may not come")


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-4])
def test_temperature_zero_or_next_to_it_is_greedy(temperature: float) -> None:
    assert set(drawn(Sampling(temperature=temperature), 20)) == {1}


def test_a_seed_makes_the_draws_the_same_again() -> None:
    assert drawn(Sampling(seed=4)) == drawn(Sampling(seed=4)) != drawn(Sampling(seed=5))


def test_top_k_top_p_min_p_and_typical_p_leave_tokens_out() -> None:
    assert set(drawn(Sampling(top_k=2, seed=1))) == {1, 3}
    assert set(drawn(Sampling(top_p=0.5, seed=1))) == {1, 3}
    assert set(drawn(Sampling(min_p=0.3, seed=1))) == {1, 2, 3}
    assert set(drawn(Sampling(typical_p=0.3, seed=1))) == {3}


def test_a_high_temperature_flattens() -> None:
    flat = drawn(Sampling(temperature=50.0, seed=1), 600)
    assert set(flat) == {0, 1, 2, 3, 4}


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NotDrawable):
        Sampler(Sampling()).draw(torch.tensor([1.0, torch.nan]))


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), [(1.0, 0, 1.0, 0.0), (0.8, 40, 0.9, 0.02)])
def test_without_penalties_the_draws_are_those_of_transformers_filters_alone(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    plain = [TopKLogitsWarper(top_k)] if top_k else []
    filters = [TemperatureLogitsWarper(temperature), *plain, TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)]
    generator = torch.Generator().manual_seed(7)
    sampler = Sampler(Sampling(temperature, top_p, top_k, min_p, seed=7), prompt=(1, 2, 3))
    for seed in range(50):
        logits = torch.randn(101, generator=torch.Generator().manual_seed(seed)) * 3
        scores = logits[None]
        for keep in filters if temperature != 1 else []:
            scores = keep(torch.empty(1, 0, dtype=torch.long), scores)
        expected = torch.multinomial(torch.softmax(scores[0], dim=-1), 1, generator=generator)
        assert sampler.draw(logits) == int(expected)


def test_a_presence_penalty_is_taken_off_once_and_a_frequency_penalty_each_time() -> None:
    logits = torch.tensor([3.0, 2.0, 0.0])
    assert drawn(Sampling(temperature=0, presence_penalty=1.5), 4, logits) == [0, 1, 0, 0]
    assert drawn(Sampling(temperature=0, frequency_penalty=0.6), 6, logits) == [0, 0, 1, 0, 1, 0]
    assert drawn(Sampling(temperature=0, presence_penalty=-4.0), 3, logits) == [0, 0, 0]


def test_presence_and_frequency_count_the_replys_tokens_and_not_the_prompts() -> None:
    asked = Sampling(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    assert drawn(asked, 1, torch.tensor([3.0, 2.0]), prompt=(0, 0, 0)) == [0]


def test_a_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_negative() -> None:
    asked = Sampling(temperature=0, repetition_penalty=2)
    assert drawn(asked, 1, torch.tensor([3.0, 1.6, 0.0]), prompt=(0,)) == [1]
    assert drawn(asked, 1, torch.tensor([3.0, 1.4, 0.0]), prompt=(0, 0)) == [0], "a token repeated is one"
    assert drawn(asked, 1, torch.tensor([-1.0, -1.5]), prompt=(0,)) == [1]
    assert drawn(asked, 2, torch.tensor([3.0, 1.6, 0.0])) == [0, 1], "the reply counts like the prompt"


def test_a_logit_bias_is_added_and_forbids_where_it_is_infinite() -> None:
    assert drawn(Sampling(temperature=0, logit_bias=((4, 100.0),)), 3) == [4, 4, 4]
    assert set(drawn(Sampling(seed=1, logit_bias=((1, -torch.inf), (2, -torch.inf))))) == {0, 3, 4}
    with pytest.raises(NotDrawable, match="logit_bias"):
        drawn(Sampling(temperature=0, logit_bias=tuple((token, -torch.inf) for token in range(5))))


@pytest.mark.parametrize(
    "asked",
    [Sampling(seed=1), Sampling(presence_penalty=1.0, repetition_penalty=1.3, logit_bias=((2, 5.0),), seed=1)],
)
def test_logits_are_left_as_they_were(asked: Sampling) -> None:
    logits = LOGITS.clone()
    sampler = Sampler(asked, prompt=(3,), constraint=lambda: Only(2, 2, 0))
    assert [sampler.draw(logits) for _ in range(3)] == [2, 2, 0]
    assert logits.equal(LOGITS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_has_the_last_word_on_which_tokens_may_come(temperature: float) -> None:
    asked = Sampling(temperature=temperature, top_k=2, logit_bias=((1, 100.0),))
    sampler = Sampler(asked, constraint=lambda: Only(4, 0))
    assert (sampler.draw(LOGITS), sampler.ended) == (4, False)
    assert (sampler.draw(LOGITS), sampler.ended) == (0, True)


def test_a_constraint_that_leaves_no_token_is_refused() -> None:
    sampler = Sampler(Sampling(temperature=0, logit_bias=((2, -torch.inf),)), constraint=lambda: Only(2))
    with pytest.raises(NotDrawable, match="constraint"):
        sampler.draw(LOGITS)


def test_log_probabilities_are_the_log_softmax_of_the_raw_logits() -> None:
    told = token_logprob(LOGITS, 2, top=3)
    expected = LOGITS.double() - LOGITS.double().exp().sum().log()
    assert told.token == 2
    assert told.logprob == pytest.approx(float(expected[2]), abs=1e-6)
    assert [token for token, _ in told.top] == [1, 3, 2]
    assert [logprob for _, logprob in told.top] == pytest.approx(expected[[1, 3, 2]].tolist(), abs=1e-6)


def test_without_alternatives_only_the_drawn_tokens_is_told() -> None:
    told = token_logprob(EVEN, 4, top=0)
    assert told == TokenLogprob(4, told.logprob)
    assert len(token_logprob(EVEN, 4, top=20).top) == 5, "there are no more than the vocabulary has"
