"""How tokens are drawn."""

import pytest
import torch

from engine.sampling import NotDrawable, Sampler, Sampling

LOGITS = torch.tensor([0.0, 3.0, 2.0, 2.9, -1.0])


def drawn(sampling: Sampling, count: int = 200) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.draw(LOGITS) for _ in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-4])
def test_temperature_zero_or_next_to_it_is_greedy(temperature: float) -> None:
    assert set(drawn(Sampling(temperature=temperature), 20)) == {1}


def test_a_seed_makes_the_draws_the_same_again() -> None:
    assert drawn(Sampling(seed=4)) == drawn(Sampling(seed=4)) != drawn(Sampling(seed=5))


def test_top_k_top_p_and_min_p_leave_the_unlikely_out() -> None:
    assert set(drawn(Sampling(top_k=2, seed=1))) == {1, 3}
    assert set(drawn(Sampling(top_p=0.5, seed=1))) == {1, 3}
    assert set(drawn(Sampling(min_p=0.3, seed=1))) == {1, 2, 3}


def test_a_high_temperature_flattens() -> None:
    flat = drawn(Sampling(temperature=50.0, seed=1), 600)
    assert set(flat) == {0, 1, 2, 3, 4}


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NotDrawable):
        Sampler(Sampling()).draw(torch.tensor([1.0, torch.nan]))
