"""Serving is unchanged, bit for bit, by whatever is learned, refused, failed or cancelled beside it."""

import hashlib

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.batch import Batch, Label, Row, lesson_rows, serving_rows
from engine.engine import Engine, EngineSettings
from engine.errors import EngineRefusal, LessonRefused
from engine.lora import tensors_sha256
from engine.walk import Walk
from engine.weights import LoadedModel
from tests.engine.conftest import SGD
from tests.engine.tiny import finish, perturb, random_tokens, serve, start_walk, tiny_model

PREFIX, RUN = random_tokens(23), random_tokens(12, seed=1)


def base_sha256(model: PreTrainedModel) -> str:
    """The hash of every weight that isn't an adapter's."""
    named = model.named_parameters()
    return tensors_sha256({name: value for name, value in named if "lora_" not in name})


def caches(engine: Engine) -> list[str]:
    """The hash of every slot's cache and kept states."""
    return [
        engine.store.sha256(slot=slot.index, stop=len(slot.tokens))
        + hashlib.sha256(engine._states[slot.index].numpy().tobytes()).hexdigest()
        for slot in engine.slots
    ]


def serve_beside(engine: Engine, lesson: str) -> tuple[list[Tensor], list[str]]:
    """Serve two slots in decode steps together while a lesson of slot 0 rides, or none does."""
    run = RUN if max(RUN) < engine.model.vocabulary else []
    serve(engine, 0, PREFIX)
    serve(engine, 1, PREFIX[:7])
    if lesson == "failed":
        with torch.no_grad():
            next(iter(engine.bank.parameters("shadow").values())).fill_(torch.nan)
    walk = None if lesson == "none" else start_walk(engine, 0, [*PREFIX, *run], len(PREFIX))
    logits = []
    for step in range(12):
        rows = [Row(token, len(engine.slots[slot].tokens), slot, output=True) for slot, token in ((0, 5), (1, 9))]
        logits.append(engine.step(Batch(tuple(rows))).logits)
        if walk is not None and lesson == "cancelled" and step == 6:
            walk.cancel()
        if walk is not None and not walk.ended:
            advance(walk, fails=lesson == "failed")
    while walk is not None and not walk.ended:
        advance(walk, fails=lesson == "failed")
    return logits, caches(engine)


def advance(walk: Walk, *, fails: bool) -> None:
    """A segment; a lesson that is to fail fails with its loss."""
    try:
        walk.advance()
    except LessonRefused:
        if not fails:
            raise


def fresh(model: PreTrainedModel) -> Engine:
    engine = Engine(model, EngineSettings(slots=2, context_tokens=64, ubatch_rows=16, optimizer=SGD))
    engine.add_shadow("shadow", seed=7)
    perturb(engine, "shadow")
    return engine


@pytest.mark.parametrize("lesson", ["learned", "cancelled", "failed"])
def test_logits_and_caches_are_identical_with_a_lesson_riding_and_without(lesson: str) -> None:
    plain_logits, plain_caches = serve_beside(fresh(tiny_model()), "none")
    logits, held = serve_beside(fresh(tiny_model()), lesson)
    assert all(torch.equal(a, b) for a, b in zip(logits, plain_logits, strict=True))
    assert held == plain_caches


def test_on_the_real_model_logits_and_caches_are_identical_with_a_lesson_riding(smollm: LoadedModel) -> None:
    seen = []
    for lesson in ("none", "learned"):
        engine = Engine(smollm.model, EngineSettings(slots=2, context_tokens=64, optimizer=SGD))
        engine.add_shadow("shadow", seed=7)
        perturb(engine, "shadow")
        before = base_sha256(smollm.model)
        seen.append(serve_beside(engine, lesson))
        assert base_sha256(smollm.model) == before
        engine.close()
    assert all(torch.equal(a, b) for a, b in zip(seen[0][0], seen[1][0], strict=True))
    assert seen[0][1] == seen[1][1]


def test_labelled_rows_in_a_serving_batch_leave_its_logits_and_cache_as_without(engine: Engine) -> None:
    served = serving_rows(0, 0, PREFIX, outputs=3)
    labelled = lesson_rows(0, 10, PREFIX[10:14], PREFIX[11:15], [1.0] * 4)
    other = fresh(tiny_model())
    step = engine.step(Batch((*served, *labelled)), shadows={0: "shadow"})
    finish(step.walks[0])
    assert torch.equal(step.logits, other.step(Batch(served)).logits)
    assert engine.store.sha256(slot=0, stop=23) == other.store.sha256(slot=0, stop=23)


def test_the_base_weights_are_the_same_after_learning(engine: Engine) -> None:
    before = base_sha256(engine.model.model)
    serve(engine, 0, PREFIX)
    finish(start_walk(engine, 0, [*PREFIX, *RUN], len(PREFIX)))
    assert base_sha256(engine.model.model) == before


def test_a_stable_set_whose_term_is_zero_serves_the_base_bit_for_bit(engine: Engine) -> None:
    base = serve(engine, 0, PREFIX)
    engine.bank.create("zero", seed=1)
    engine.rekey(1, "zero")
    assert torch.equal(serve(engine, 1, PREFIX), base)


def test_a_slot_served_by_an_adapter_leaves_its_neighbours_logits_as_they_were(engine: Engine) -> None:
    engine.bank.create("other", seed=1)
    perturb(engine, "other")
    engine.rekey(1, "other")
    for slot in (0, 1):
        serve(engine, slot, PREFIX)
    rows = tuple(Row(5, len(PREFIX), slot, output=True) for slot in (0, 1))
    mixed = engine.step(Batch(rows)).logits
    plain = fresh(tiny_model())
    for slot in (0, 1):
        serve(plain, slot, PREFIX)
    base = plain.step(Batch(rows)).logits
    assert torch.equal(mixed[0], base[0])
    assert not torch.allclose(mixed[1], base[1])


def test_decoding_slots_together_gives_each_slot_its_own_logits(engine: Engine) -> None:
    prompts = [PREFIX, PREFIX[:5], RUN]
    for slot, prompt in enumerate(prompts):
        serve(engine, slot, prompt)
    rows = tuple(Row(5 + slot, len(prompt), slot, output=True) for slot, prompt in enumerate(prompts))
    together = engine.step(Batch(rows)).logits
    with torch.no_grad():
        alone = [tiny_model()(torch.tensor([[*p, 5 + i]])).logits[0, -1] for i, p in enumerate(prompts)]
    assert torch.allclose(together, torch.stack(alone), atol=1e-5)  # other row counts, other summation order


def test_a_prompt_served_in_chunks_equals_the_models_own_forward(engine: Engine) -> None:
    tokens = random_tokens(70)  # five passes of 16 rows at most
    with torch.no_grad():
        expected = tiny_model()(torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(serve(engine, 0, tokens), expected, atol=1e-5)


def test_the_distribution_a_row_was_served_with_is_a_head_slice_away(engine: Engine) -> None:
    logits = serve(engine, 0, PREFIX)
    serve(engine, 0, [3, 4])
    assert torch.equal(engine.served_logits(0, len(PREFIX) - 1), logits)


REFUSED: list[tuple[EngineRefusal, tuple[Row, ...]]] = [
    ("unserved_prefix", lesson_rows(0, 30, [1, 2], [2, 3], [1, 1])),
    ("past_context", lesson_rows(0, 20, [1] * 80, [2] * 80, [1.0] * 80)),
]


@pytest.mark.parametrize(("code", "rows"), REFUSED)
def test_a_refused_lesson_changes_nothing(engine: Engine, code: EngineRefusal, rows: tuple[Row, ...]) -> None:
    serve(engine, 0, PREFIX)
    before = (caches(engine), engine.bank.sha256("shadow"), list(engine.slots[0].tokens))
    with pytest.raises(LessonRefused) as refused:
        engine.step(Batch((*serving_rows(0, 23, [1]), *rows)), shadows={0: "shadow"})
    assert refused.value.code == code
    assert refused.value.position is not None
    assert (caches(engine), engine.bank.sha256("shadow"), list(engine.slots[0].tokens)) == before


def test_a_lesson_for_an_adapter_the_lane_has_not_is_refused(engine: Engine) -> None:
    serve(engine, 0, PREFIX)
    with pytest.raises(LessonRefused, match="nobody") as refused:
        engine.step(Batch(lesson_rows(0, 5, [1], [2], [1.0])), shadows={0: "nobody"})
    assert refused.value.code == "adapter_unknown"


def test_a_lane_of_packed_weights_serves_and_refuses_lessons() -> None:
    packed = Engine(tiny_model(), EngineSettings(slots=2, context_tokens=64, repack="serve"))
    packed.add_shadow("shadow", seed=7)
    plain = fresh(tiny_model())
    assert torch.allclose(serve(packed, 0, PREFIX), serve(plain, 0, PREFIX), atol=1e-5)
    with pytest.raises(LessonRefused) as refused:
        start_walk(packed, 0, [*PREFIX, *RUN], len(PREFIX))
    assert refused.value.code == "repacked_weights"
    assert "--repack both" in refused.value.message


def test_labels_that_are_not_one_run_are_refused_when_the_batch_is_built() -> None:
    first, _, third = lesson_rows(0, 4, [1, 2, 3], [2, 3, 4], [1.0] * 3)
    with pytest.raises(LessonRefused) as refused:
        Batch((first, third))
    assert (refused.value.code, refused.value.position) == ("labels_not_one_run", 6)


def test_a_label_on_a_row_that_is_no_output_is_refused_when_the_batch_is_built() -> None:
    with pytest.raises(LessonRefused) as refused:
        Batch((Row(1, 4, 0, output=False, label=Label(2)),))
    assert refused.value.code == "label_not_output"


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_is_not_finite_or_negative_is_refused_when_the_batch_is_built(weight: float) -> None:
    with pytest.raises(LessonRefused) as refused:
        Batch((Row(1, 4, 0, output=True, label=Label(2, weight)),))
    assert refused.value.code == "bad_weight"
