"""A step changes everything or nothing, and a snapshot is all there is."""

import pytest
import torch

from engine.engine import Engine, EngineSettings
from engine.errors import LessonRefused
from engine.lora import tensors_sha256
from engine.shadow import OptimizerSettings, Shadow, ShadowDidNotMove
from tests.engine.tiny import finish, perturb, random_tokens, serve, start_walk, tiny_model

SEQUENCE = random_tokens(24)


@pytest.fixture
def adamw() -> Engine:
    """An engine whose shadow has taken one AdamW step, so that it has moments."""
    settings = EngineSettings(slots=1, context_tokens=64, optimizer=OptimizerSettings(lr=1e-3))
    made = Engine(tiny_model(), settings)
    made.add_shadow("shadow", seed=7)
    perturb(made, "shadow")
    serve(made, 0, SEQUENCE[:15])
    finish(start_walk(made, 0, SEQUENCE, 15))
    return made


def gradient(shadow: Shadow, engine: Engine, value: float) -> None:
    for parameter in engine.bank.parameters(shadow.name).values():
        parameter.grad = torch.full_like(parameter, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_on_a_gradient_that_is_not_finite_leaves_shadow_moments_and_counter_to_the_byte(
    adamw: Engine, value: float
) -> None:
    shadow = adamw.shadows["shadow"]
    before = shadow.snapshot()
    gradient(shadow, adamw, value)
    with pytest.raises(LessonRefused) as refused:
        shadow.step(shadow.prepare())
    assert refused.value.code == "nonfinite_gradient"
    assert tensors_sha256(shadow.snapshot()) == tensors_sha256(before)


def test_a_step_whose_result_is_not_finite_is_taken_back_to_the_byte() -> None:
    made = Engine(
        tiny_model(), EngineSettings(slots=1, context_tokens=64, optimizer=OptimizerSettings("sgd", lr=1.0))
    )
    shadow = made.add_shadow("shadow", seed=7)
    before = shadow.snapshot()
    gradient(shadow, made, 3e38)
    shadow.gradient_norm = lambda: 1.0  # type: ignore[method-assign]
    with pytest.raises(LessonRefused, match=r"1000\.0"):
        shadow.step(shadow.prepare(), lr=1e3)
    assert tensors_sha256(shadow.snapshot()) == tensors_sha256(before)


def test_a_learning_rate_of_its_own_is_for_one_step_alone() -> None:
    settings = EngineSettings(slots=1, context_tokens=64, optimizer=OptimizerSettings("sgd", lr=0.5))
    made = Engine(tiny_model(), settings)
    shadow = made.add_shadow("shadow", seed=7)
    moved = []
    for lr in (0.25, None):
        before = made.bank.tensors("shadow")
        gradient(shadow, made, 1.0)
        taken = shadow.step(shadow.prepare(), lr=lr)
        moved.append((taken.lr, {key: before[key] - value for key, value in made.bank.tensors("shadow").items()}))
    assert [lr for lr, _ in moved] == [0.25, 0.5]
    for lr, steps in moved:
        assert all(torch.allclose(step, torch.full_like(step, lr), atol=1e-6) for step in steps.values())


def test_a_step_after_which_the_shadow_did_not_move_is_an_error_and_changes_nothing(adamw: Engine) -> None:
    adamw.shadows["other"] = other = adamw.add_shadow("other", seed=3)
    before = other.snapshot()
    gradient(other, adamw, 0.0)
    with pytest.raises(ShadowDidNotMove):
        other.step(other.prepare())
    assert tensors_sha256(other.snapshot()) == tensors_sha256(before)


def test_a_restored_snapshot_goes_on_as_if_nothing_had_happened(adamw: Engine) -> None:
    shadow = adamw.shadows["shadow"]
    snapshot = shadow.snapshot()
    first = finish(start_walk(adamw, 0, SEQUENCE, 15)).step.sha_after
    shadow.restore(snapshot)
    again = finish(start_walk(adamw, 0, SEQUENCE, 15))
    assert again.step.sha_after == first
    assert again.steps == 2


def test_the_first_values_of_a_shadow_depend_on_its_seed_alone() -> None:
    shas = []
    for seed in (7, 7, 8):
        made = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=64))
        torch.rand(5)
        shas.append(made.add_shadow("shadow", seed=seed).sha256())
        made.close()
    assert shas[0] == shas[1]
    assert shas[0] != shas[2]


def test_a_shadow_still_learns_after_another_adapter_was_added_and_dropped(adamw: Engine) -> None:
    adamw.bank.load("stable", adamw.bank.tensors("shadow"))
    adamw.bank.drop("stable")
    learned = finish(start_walk(adamw, 0, SEQUENCE, 15))
    assert learned.step.sha_before != learned.step.sha_after


def test_learning_one_shadow_leaves_the_others_to_the_byte(adamw: Engine) -> None:
    other = adamw.add_shadow("other", seed=3)
    before = tensors_sha256(other.snapshot())
    finish(start_walk(adamw, 0, SEQUENCE, 15))
    assert tensors_sha256(other.snapshot()) == before
