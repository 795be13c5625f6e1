"""The lesson's two-part attention: its gradient in float64, and its values against torch's own attention."""

import itertools

import pytest
import torch
from torch import Tensor

from engine import lesson_attention
from engine.attention import AttentionForm, attend
from engine.lesson_attention import attend_lesson

ROWS, HEADS, GROUPS, SIZE = 37, 2, 3, 5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every prefix has a whole one and a rest."""
    monkeypatch.setattr(lesson_attention, "PREFIX_TILE", 64)


def tensors(
    prefix: int, *, rows: int = ROWS, run: int | None = None, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Query, run keys, run values, prefix keys, prefix values."""
    generator = torch.Generator().manual_seed(prefix)
    shapes = [(GROUPS * HEADS, rows), (HEADS, run or rows), (HEADS, run or rows), (HEADS, prefix), (HEADS, prefix)]
    return [torch.randn(1, *shape, SIZE, generator=generator, dtype=dtype) for shape in shapes]


def forms() -> list[AttentionForm]:
    sinks = torch.linspace(-1, 1, GROUPS * HEADS, dtype=torch.float64)
    return [
        AttentionForm(scale=0.4),
        AttentionForm(scale=0.4, window=9),
        AttentionForm(scale=0.4, window=100),
        AttentionForm(scale=0.4, softcap=2.0),
        AttentionForm(scale=0.4, sinks=sinks),
        AttentionForm(scale=0.4, window=50, softcap=3.0, sinks=sinks),
    ]


CASES = list(itertools.product(range(len(forms())), [0, 1, 203]))


def joined(
    query: Tensor, run: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], form: AttentionForm
) -> Tensor:
    """The obvious reference: prefix and run joined, one attention."""
    keys, values = (torch.cat([held, own], dim=2) for held, own in zip(prefix, run, strict=True))
    return attend(query, keys, values, form)


@pytest.mark.parametrize(("form", "prefix"), CASES)
def test_values_and_gradients_are_those_of_one_attention_over_both_parts(form: int, prefix: int) -> None:
    query, *rest = tensors(prefix)
    gradient = torch.randn(1, GROUPS * HEADS, ROWS, SIZE, dtype=torch.float64)
    seen = []
    for function in (attend_lesson, joined):
        leaves = [tensor.clone().requires_grad_() for tensor in (query, *rest[:2])]
        attended = function(leaves[0], (leaves[1], leaves[2]), (rest[2], rest[3]), forms()[form])
        attended.backward(gradient)
        seen.append([attended.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*seen, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.allclose(
            ours, theirs, atol=1e-6 if forms()[form].softcap or forms()[form].sinks is not None else 1e-10
        )


@pytest.mark.parametrize(("form", "prefix"), CASES)
def test_the_gradient_is_the_slope_in_float64(form: int, prefix: int) -> None:
    query, run_keys, run_values, *held = tensors(prefix, rows=7)
    leaves = [tensor.requires_grad_() for tensor in (query, run_keys, run_values)]

    def function(*own: Tensor) -> Tensor:
        return attend_lesson(own[0], (own[1], own[2]), (held[0], held[1]), forms()[form])

    assert torch.autograd.gradcheck(function, leaves, fast_mode=False)


def test_rows_that_stand_at_the_end_of_a_longer_run_see_what_came_before_in_it() -> None:
    query, run_keys, run_values, *held = tensors(60, rows=11, run=30)
    form = AttentionForm(scale=0.4)
    ours = attend_lesson(query, (run_keys, run_values), (held[0], held[1]), form)
    assert torch.allclose(ours, joined(query, (run_keys, run_values), (held[0], held[1]), form), atol=1e-10)


def test_no_gradient_reaches_the_prefix() -> None:
    query, run_keys, run_values, *held = tensors(20)
    prefix = [tensor.requires_grad_() for tensor in held]
    attended = attend_lesson(query.requires_grad_(), (run_keys, run_values), (prefix[0], prefix[1]), forms()[0])
    attended.sum().backward()
    assert query.grad is not None
    assert [tensor.grad for tensor in prefix] == [None, None]
