"""Packed weights: the same products, the same gradients, and a lane that says when it cannot learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engine import packed
from engine.engine import Engine, EngineSettings
from engine.packed import PackedLinear, Repack
from tests.engine.conftest import SGD
from tests.engine.test_walk import stepped_gradient
from tests.engine.tiny import flat, peft_reference, perturb, random_tokens, reference_gradient, serve, tiny_model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5, 64, 131])
def test_a_packed_product_and_its_gradient_are_the_plain_ones(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    plain = nn.Linear(33, 47, bias=bias).requires_grad_(False)
    pack = PackedLinear(plain, learns=True)
    gradient = torch.randn(1, rows, 47)
    seen = []
    for linear in (plain, pack):
        x = torch.linspace(-1, 1, rows * 33).view(1, rows, 33).requires_grad_()
        y = linear(x)
        y.backward(gradient)
        assert x.grad is not None
        seen.append((y.detach(), x.grad))
    assert torch.allclose(seen[0][0], seen[1][0], atol=1e-5)
    assert torch.allclose(seen[0][1], seen[1][1], atol=1e-5)


def test_a_lesson_on_packed_weights_has_the_gradient_of_peft_and_autograd() -> None:
    settings = EngineSettings(slots=1, context_tokens=64, optimizer=SGD, repack="both")
    made = Engine(tiny_model(), settings)
    made.add_shadow("shadow", seed=7)
    tensors = perturb(made, "shadow")
    sequence = random_tokens(41)
    serve(made, 0, sequence[:23])
    loss, gradient = stepped_gradient(made, 0, sequence, 23)
    reference = peft_reference(tiny_model(), tensors, rank=8, alpha=16)
    expected_loss, expected = reference_gradient(reference, sequence, 23)
    assert abs(loss - expected_loss) < 1e-5
    assert F.cosine_similarity(gradient, flat(expected), dim=0) >= 0.999999
    assert abs(gradient.norm() / flat(expected).norm() - 1) < 1e-5


@pytest.mark.parametrize("mode", ["serve", "both"])
def test_packed_weights_serve_what_plain_ones_do(mode: Repack) -> None:
    made = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=64, repack=mode))
    plain = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=64))
    prompt = random_tokens(23)
    assert torch.allclose(serve(made, 0, prompt), serve(plain, 0, prompt), atol=1e-5)
    assert made.packing.mode == mode
    weights = sum(layer.base_layer.weight.nbytes for layer in plain.bank.layers.values())
    head = plain.model.model.get_output_embeddings().weight.nbytes
    assert made.packing.nbytes == (weights + head) * (2 if mode == "both" else 1)


@pytest.mark.parametrize(("free", "picked"), [(2**40, "both"), (2**16, "off")])
def test_auto_packs_both_ways_where_there_is_room_and_else_not_at_all(
    monkeypatch: pytest.MonkeyPatch, free: int, picked: str
) -> None:
    monkeypatch.setattr(packed, "available_bytes", lambda: free)
    made = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=64, repack="auto"))
    assert made.packing.mode == picked
    assert (made.packing.nbytes > 0) == (picked == "both")
