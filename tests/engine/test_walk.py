"""The walk against plain PEFT and autograd: the same objective, the same gradient."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from engine.engine import Engine, EngineSettings
from engine.errors import LessonRefused
from engine.shadow import OptimizerSettings
from engine.weights import LoadedModel
from tests.engine.conftest import SGD
from tests.engine.tiny import (
    FAMILIES,
    finish,
    flat,
    peft_reference,
    perturb,
    random_tokens,
    reference_gradient,
    serve,
    start_walk,
    tiny_model,
)


def stepped_gradient(engine: Engine, *args: object, **kwargs: object) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of a lesson, read off a plain SGD step of lr 1."""
    before = engine.bank.tensors("shadow")
    learned = finish(start_walk(engine, *args, **kwargs))  # type: ignore[arg-type]
    after = engine.bank.tensors("shadow")
    engine.bank.load("shadow", before)
    return learned.loss, flat(before) - flat(after)


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys")  # PEFT, on expert layers
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_equals_peft_and_autograd_given_the_prefix_as_served(family: str) -> None:
    made = Engine(tiny_model(family), EngineSettings(slots=1, context_tokens=64, ubatch_rows=16, optimizer=SGD))
    made.add_shadow("shadow", seed=7)
    tensors = perturb(made, "shadow")
    sequence = random_tokens(41)
    serve(made, 0, sequence[:23])
    loss, gradient = stepped_gradient(made, 0, sequence, 23)
    reference = peft_reference(tiny_model(family), tensors, rank=8, alpha=16)
    expected_loss, expected = reference_gradient(reference, sequence, 23)
    assert abs(loss - expected_loss) < 1e-5
    assert set(expected) == set(tensors), "the reference trains other parameters"
    assert F.cosine_similarity(gradient, flat(expected), dim=0) >= 0.999999
    assert abs(gradient.norm() / flat(expected).norm() - 1) < 1e-5
    made.close()


def test_the_gradient_on_the_real_model_equals_peft_and_autograd(smollm: LoadedModel) -> None:
    made = Engine(smollm.model, EngineSettings(slots=1, context_tokens=256, optimizer=SGD))
    made.add_shadow("shadow", seed=7)
    tensors = perturb(made, "shadow")
    prompt = smollm.tokenizer.encode("The lighthouse of Vellmar was built in the year")
    sequence = prompt + smollm.tokenizer.encode(" 1402, by a guild of glassblowers from the north.")
    serve(made, 0, prompt)
    loss, gradient = stepped_gradient(made, 0, sequence, len(prompt))
    made.close()
    own = AutoModelForCausalLM.from_pretrained(smollm.directory, dtype=torch.float32).eval()
    expected_loss, expected = reference_gradient(
        peft_reference(own, tensors, rank=8, alpha=16), sequence, len(prompt)
    )
    assert abs(loss - expected_loss) < 1e-5
    assert F.cosine_similarity(gradient, flat(expected), dim=0) >= 0.999999
    assert abs(gradient.norm() / flat(expected).norm() - 1) < 1e-5


def test_a_run_without_a_prefix_is_learned_from_its_first_row(engine: Engine) -> None:
    sequence = random_tokens(9)
    serve(engine, 0, sequence)
    loss, gradient = stepped_gradient(engine, 0, sequence, 1)
    reference = peft_reference(tiny_model(), engine.bank.tensors("shadow"), rank=8, alpha=16)
    expected_loss, expected = reference_gradient(reference, sequence, 1)
    assert abs(loss - expected_loss) < 1e-5
    assert F.cosine_similarity(gradient, flat(expected), dim=0) >= 0.999999


def test_weights_of_one_are_the_unweighted_lesson(engine: Engine) -> None:
    sequence = random_tokens(12)
    serve(engine, 0, sequence[:10])
    _, plain = stepped_gradient(engine, 0, sequence, 10)
    reference = peft_reference(tiny_model(), engine.bank.tensors("shadow"), rank=8, alpha=16)
    _, expected = reference_gradient(reference, sequence, 10)
    _, weighted = stepped_gradient(engine, 0, sequence, 10, weights=[1.0, 1.0])
    assert torch.equal(plain, weighted)
    assert torch.allclose(plain, flat(expected), atol=1e-7)


def test_weights_of_two_are_twice_the_gradient(engine: Engine) -> None:
    sequence = random_tokens(12)
    serve(engine, 0, sequence[:10])
    _, once = stepped_gradient(engine, 0, sequence, 10, weights=[1.0, 1.0])
    _, twice = stepped_gradient(engine, 0, sequence, 10, weights=[2.0, 2.0])
    assert F.cosine_similarity(once, twice, dim=0) >= 0.999999
    assert abs(twice.norm() / once.norm() - 2) < 1e-5


def test_weights_one_and_zero_are_half_of_row_zeros_own_gradient(engine: Engine) -> None:
    sequence = random_tokens(12)
    serve(engine, 0, sequence[:10])
    _, own = stepped_gradient(engine, 0, sequence[:11], 10)
    _, halved = stepped_gradient(engine, 0, sequence, 10, weights=[1.0, 0.0])
    assert F.cosine_similarity(own, halved, dim=0) >= 0.999999
    assert abs(halved.norm() / own.norm() - 0.5) < 1e-5


def test_the_kl_is_zero_while_the_shadow_has_learned_nothing(engine: Engine) -> None:
    engine.add_shadow("new", seed=3)
    sequence = random_tokens(20)
    serve(engine, 0, sequence[:12])
    first = finish(start_walk(engine, 0, sequence, 12, shadow="new"))
    second = finish(start_walk(engine, 0, sequence, 12, shadow="new"))
    assert abs(first.kl_served) < 1e-6
    assert second.kl_served > 1e-3
    assert second.loss < first.loss


def test_the_kl_from_kept_states_equals_the_kl_from_a_forward_of_their_own(engine: Engine) -> None:
    sequence = random_tokens(20)
    serve(engine, 0, sequence)
    serve(engine, 1, sequence[:12])
    kept = start_walk(engine, 0, sequence, 12)
    assert kept.lesson.served_states is not None
    computed = start_walk(engine, 1, sequence, 12)
    assert computed.lesson.served_states is None
    before = engine.bank.tensors("shadow")
    kl_kept = finish(kept).kl_served
    engine.bank.load("shadow", before)
    assert abs(finish(computed).kl_served - kl_kept) < 1e-5
    assert kl_kept > 1e-4


def test_segments_between_served_rows_give_the_same_bytes_as_one_walk_alone() -> None:
    shas = []
    for interleave in (False, True):
        made = Engine(
            tiny_model(),
            EngineSettings(slots=2, context_tokens=64, optimizer=OptimizerSettings(name="adamw", lr=1e-3)),
        )
        made.add_shadow("shadow", seed=7)
        sequence = random_tokens(24)
        serve(made, 0, sequence[:15])
        serve(made, 1, sequence[:3])
        for _ in range(10):
            walk = start_walk(made, 0, sequence, 15)
            while walk.advance() is None:
                if interleave and len(made.slots[1].tokens) < 60:
                    serve(made, 1, [5])
        shas.append(made.bank.sha256("shadow"))
        made.close()
    assert shas[0] == shas[1]


def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing(engine: Engine) -> None:
    sequence = random_tokens(20)
    serve(engine, 0, sequence[:12])
    key = next(key for key in engine.bank.parameters("shadow") if "lora_B" in key)
    with torch.no_grad():
        engine.bank.parameters("shadow")[key].fill_(torch.inf)
    sha = engine.bank.sha256("shadow")
    with pytest.raises(LessonRefused) as refused:
        finish(start_walk(engine, 0, sequence, 12))
    assert refused.value.code == "nonfinite_loss"
    assert refused.value.position is not None
    assert engine.bank.sha256("shadow") == sha
    assert all(parameter.grad is None for parameter in engine.bank.parameters("shadow").values())


def test_a_cancelled_walk_leaves_the_shadow_and_no_gradient(engine: Engine) -> None:
    sequence = random_tokens(20)
    serve(engine, 0, sequence[:12])
    sha = engine.bank.sha256("shadow")
    walk = start_walk(engine, 0, sequence, 12)
    for _ in range(8):
        assert walk.advance() is None
    walk.cancel()
    assert walk.ended
    assert engine.bank.sha256("shadow") == sha
    assert all(parameter.grad is None for parameter in engine.bank.parameters("shadow").values())
