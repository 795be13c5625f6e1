"""The sliced loss against the whole one, in value and gradient. Vocabulary 37, odd slices."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.loss import LabelledRows, loss_slices

ROWS, HIDDEN, VOCABULARY = 11, 8, 37


@pytest.fixture
def head() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(HIDDEN, VOCABULARY).requires_grad_(False)


@pytest.fixture
def states() -> Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(2))


def rows(weights: list[float]) -> LabelledRows:
    return LabelledRows(tuple((7 * i) % VOCABULARY for i in range(len(weights))), tuple(weights))


def sliced(
    states: Tensor, labelled: LabelledRows, head: torch.nn.Linear, *, slice_rows: int
) -> tuple[float, Tensor]:
    gradient = torch.full_like(states, torch.nan)
    parts = loss_slices(
        states, gradient, labelled, head, vocabulary=VOCABULARY, slice_bytes=4 * VOCABULARY * slice_rows
    )
    return sum(part.loss for part in parts if part is not None), gradient


def whole(states: Tensor, labelled: LabelledRows, head: torch.nn.Linear) -> tuple[float, Tensor]:
    """The obvious reference: every row's logits at once."""
    leaf = states.clone().requires_grad_()
    losses = F.cross_entropy(head(leaf), torch.tensor(labelled.targets), reduction="none")
    loss = (losses * torch.tensor(labelled.weights)).sum() / len(labelled.targets)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


@pytest.mark.parametrize("slice_rows", [1, 3, 11, 50])
def test_slices_give_the_whole_loss_and_gradient(states: Tensor, head: torch.nn.Linear, slice_rows: int) -> None:
    labelled = rows([1.0, 0.5, 2.0, 0.25, 1.0, 1.0, 3.0, 0.125, 1.0, 1.0, 0.75])
    loss, gradient = sliced(states, labelled, head, slice_rows=slice_rows)
    expected_loss, expected = whole(states, labelled, head)
    assert abs(loss - expected_loss) < 1e-6
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_a_row_of_weight_zero_has_a_gradient_of_exactly_zero_and_meets_no_head(
    states: Tensor, head: torch.nn.Linear
) -> None:
    states[3] = torch.nan
    labelled = rows([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    loss, gradient = sliced(states, labelled, head, slice_rows=4)
    assert torch.equal(gradient[3], torch.zeros(HIDDEN))
    assert torch.isfinite(torch.tensor(loss))
    assert bool(torch.isfinite(gradient).all())


def test_a_row_without_a_target_takes_no_part_and_does_not_count(states: Tensor, head: torch.nn.Linear) -> None:
    labelled = LabelledRows((5, None, 9), (1.0, 1.0, 1.0))
    loss, gradient = sliced(states[:3], labelled, head, slice_rows=2)
    expected_loss, expected = whole(states[[0, 2]], LabelledRows((5, 9), (1.0, 1.0)), head)
    assert abs(loss - expected_loss) < 1e-6
    assert torch.allclose(gradient[[0, 2]], expected, atol=1e-6)
    assert torch.equal(gradient[1], torch.zeros(HIDDEN))


def test_the_kl_is_zero_from_itself_and_that_of_torch_from_another(states: Tensor, head: torch.nn.Linear) -> None:
    labelled, served = rows([1.0] * ROWS), states + 0.3
    own = list(
        filter(None, loss_slices(states, states.clone(), labelled, head, vocabulary=VOCABULARY, served=states))
    )
    other = list(
        filter(None, loss_slices(states, states.clone(), labelled, head, vocabulary=VOCABULARY, served=served))
    )
    p, q = F.log_softmax(head(served), -1), F.log_softmax(head(states), -1)
    assert abs(sum(part.kl_sum for part in own)) < 1e-6
    assert abs(sum(part.kl_sum for part in other) - (p.exp() * (p - q)).sum().item()) < 1e-5


def test_the_losses_of_the_rows_are_the_rows_own(states: Tensor, head: torch.nn.Linear) -> None:
    labelled = rows([2.0] * ROWS)
    parts = filter(None, loss_slices(states, states.clone(), labelled, head, vocabulary=VOCABULARY))
    losses = {row: loss for part in parts for row, loss in part.row_losses.items()}
    expected = F.cross_entropy(head(states), torch.tensor(labelled.targets), reduction="none")
    assert torch.allclose(torch.tensor([losses[i] for i in range(ROWS)]), expected, atol=1e-6)
