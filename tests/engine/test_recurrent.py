"""Models with recurrent layers: served from states, learned from checkpoints, refused where there is none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engine.batch import Batch, Row, Run, lesson_rows, serving_rows
from engine.engine import Engine, EngineSettings
from engine.errors import LessonRefused, ModelNotUsable
from engine.lane import Lane
from engine.orders import Event, LessonEnded, LessonOrder, TurnEnded, TurnOrder
from engine.passes import plan_passes
from engine.recurrent import RECURRENT_FAMILIES, RecurrentStates
from engine.sampling import Sampling
from engine.slots import Slot
from engine.walk import LessonLearned
from tests.engine.conftest import SGD
from tests.engine.test_walk import stepped_gradient
from tests.engine.tiny import (
    BASE,
    RECURRENT,
    VOCABULARY,
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

SEQUENCE = random_tokens(41)
PROMPT_TOKENS = 23
REORDERED = 1e-5
"""Of the largest logit, in float32: other row counts and other chunk borders sum in another order."""

pytestmark = pytest.mark.filterwarnings("ignore:The following .*_pattern keys")  # PEFT, on expert layers


SETTINGS = EngineSettings(slots=3, context_tokens=64, ubatch_rows=7, optimizer=SGD)


def recurrent_engine(family: str = "qwen3_5_text", **changes: int) -> Engine:
    engine = Engine(tiny_model(family), replace(SETTINGS, **changes))  # type: ignore[arg-type]
    engine.add_shadow("shadow", seed=7)
    perturb(engine, "shadow")
    return engine


@pytest.fixture
def hybrid() -> Iterator[Engine]:
    """A tiny gated delta net with attention in between, and a shadow whose term is not zero."""
    engine = recurrent_engine()
    yield engine
    engine.close()


def states_of(engine: Engine) -> RecurrentStates:
    assert engine.recurrent is not None
    return engine.recurrent


def held(engine: Engine) -> list[str]:
    """The hashes of all that the slots hold."""
    return [
        engine.store.sha256(slot=slot.index, stop=len(slot.tokens)) + states_of(engine).sha256(slot.index)
        for slot in engine.slots
    ]


def own_logits(family: str, tokens: Sequence[int]) -> Tensor:
    """The model's own forward, without a cache: logits [T, V]."""
    with torch.no_grad():
        logits: Tensor = tiny_model(family)(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    return float((logits - expected).abs().max() / expected.abs().max())


def test_every_family_that_is_let_in_is_tested_here() -> None:
    assert set(RECURRENT) == RECURRENT_FAMILIES


@pytest.mark.parametrize("family", RECURRENT)
def test_a_prompt_in_chunks_and_its_reply_equal_the_models_own_forward(family: str) -> None:
    engine = recurrent_engine(family)
    served = [serve(engine, 0, SEQUENCE[:PROMPT_TOKENS]), *(serve(engine, 0, [x]) for x in SEQUENCE[23:])]
    assert difference(torch.stack(served), own_logits(family, SEQUENCE)[22:]) < REORDERED


@pytest.mark.parametrize("family", RECURRENT)
def test_slots_that_decode_together_equal_the_models_own_forward(family: str) -> None:
    engine = recurrent_engine(family)
    prompts = [SEQUENCE[:PROMPT_TOKENS], SEQUENCE[5:14], []]  # the third slot's first row shares the batch
    for slot, prompt in enumerate(prompts[:2]):
        serve(engine, slot, prompt)
    for step in range(3):
        rows = [Row(5 + step, len(engine.slots[slot].tokens), slot, output=True) for slot in range(3)]
        together = engine.step(Batch(tuple(rows))).logits
    expected = [own_logits(family, [*prompt, 5, 6, 7])[-1] for prompt in prompts]
    assert difference(together, torch.stack(expected)) < REORDERED


@pytest.mark.parametrize("run_rows", [18, 1])  # one row takes the kernels that update a state in place
@pytest.mark.parametrize("family", RECURRENT)
def test_the_gradient_equals_peft_and_autograd_given_the_prefix_as_served(family: str, run_rows: int) -> None:
    engine, sequence = recurrent_engine(family), SEQUENCE[: PROMPT_TOKENS + run_rows]
    serve(engine, 0, sequence[:PROMPT_TOKENS])
    check_gradient(engine, family, sequence, PROMPT_TOKENS)


@pytest.mark.parametrize("family", ["qwen3_5_text", "mamba2"])
@pytest.mark.parametrize("first_target", [1, 12])
def test_a_lesson_from_the_first_row_or_from_the_slots_end_needs_no_checkpoint(
    family: str, first_target: int
) -> None:
    engine = recurrent_engine(family, checkpoint_bytes=0)
    serve(engine, 0, SEQUENCE[: first_target - 1] or SEQUENCE)
    assert engine.slots[0].checkpoints == set()
    check_gradient(engine, family, SEQUENCE[:20], first_target)


def check_gradient(engine: Engine, family: str, sequence: Sequence[int], first_target: int) -> None:
    tensors = engine.bank.tensors("shadow")
    loss, gradient = stepped_gradient(engine, 0, sequence, first_target)
    reference = peft_reference(tiny_model(family), tensors, rank=8, alpha=16)
    expected_loss, expected = reference_gradient(reference, sequence, first_target)
    assert abs(loss - expected_loss) < 1e-5
    assert set(expected) == set(tensors), "the reference trains other parameters"
    assert F.cosine_similarity(gradient, flat(expected), dim=0) >= 0.999999
    assert abs(gradient.norm() / flat(expected).norm() - 1) < 1e-5


def serve_beside(family: str, lesson: str, run_rows: int) -> tuple[list[Tensor], list[str]]:
    """Decode two slots together while a lesson of slot 0 rides, or none does."""
    engine = recurrent_engine(family)
    serve(engine, 0, SEQUENCE[:PROMPT_TOKENS])
    serve(engine, 1, SEQUENCE[:9])
    sequence = SEQUENCE[: PROMPT_TOKENS + run_rows]
    walk = None if lesson == "none" else start_walk(engine, 0, sequence, PROMPT_TOKENS)
    logits = []
    for step in range(20):
        rows = [Row(5 + slot, len(engine.slots[slot].tokens), slot, output=True) for slot in (0, 1)]
        logits.append(engine.step(Batch(tuple(rows))).logits)
        if walk is not None and lesson == "cancelled" and step == 6:
            walk.cancel()
        if walk is not None and not walk.ended:
            walk.advance()
    assert walk is None or walk.ended
    return logits, held(engine)


@pytest.mark.parametrize(("lesson", "run_rows"), [("learned", 18), ("learned", 1), ("cancelled", 18)])
@pytest.mark.parametrize("family", RECURRENT)
def test_logits_caches_and_states_are_identical_with_a_lesson_riding_and_without(
    family: str, lesson: str, run_rows: int
) -> None:
    plain_logits, plain_held = serve_beside(family, "none", run_rows)
    logits, now_held = serve_beside(family, lesson, run_rows)
    assert all(torch.equal(a, b) for a, b in zip(logits, plain_logits, strict=True))
    assert now_held == plain_held


def test_a_lesson_rides_the_batch_that_serves_its_own_prompt(hybrid: Engine) -> None:
    labelled = lesson_rows(0, PROMPT_TOKENS - 1, SEQUENCE[22:40], SEQUENCE[23:41], [1.0] * 18)
    batch = Batch((*serving_rows(0, 0, SEQUENCE[:PROMPT_TOKENS], outputs=1), *labelled))
    riding = finish(hybrid.step(batch, shadows={0: "shadow"}).walks[0])
    after = recurrent_engine()
    serve(after, 0, SEQUENCE[:PROMPT_TOKENS])
    assert riding.step.sha_after == finish(start_walk(after, 0, SEQUENCE, PROMPT_TOKENS)).step.sha_after


def test_a_lesson_without_its_checkpoint_is_refused_and_changes_nothing(hybrid: Engine) -> None:
    serve(hybrid, 0, SEQUENCE[:PROMPT_TOKENS])
    before = (held(hybrid), hybrid.bank.sha256("shadow"), list(hybrid.slots[0].tokens))
    rows = (*serving_rows(0, 23, [1], outputs=1), *lesson_rows(0, 11, [1, 2], [2, 3], [1, 1]))
    with pytest.raises(LessonRefused, match="after 11 rows, and the slot has them after") as refused:
        hybrid.step(Batch(rows), shadows={0: "shadow"})
    assert (refused.value.code, refused.value.position) == ("recurrent_state_missing", 11)
    assert (held(hybrid), hybrid.bank.sha256("shadow"), list(hybrid.slots[0].tokens)) == before


def test_checkpoints_stand_before_and_after_a_prompts_last_row_and_in_no_reply(hybrid: Engine) -> None:
    serve(hybrid, 0, SEQUENCE[:PROMPT_TOKENS])
    for token in SEQUENCE[23:30]:
        serve(hybrid, 0, [token])
    assert hybrid.slots[0].checkpoints == {22, 23}
    hybrid.cut(0, tokens=30)  # another turn, which goes on from all of this with one more row
    serve(hybrid, 0, [1])
    assert hybrid.slots[0].checkpoints == {22, 23, 30, 31}


def test_checkpoints_are_evicted_by_bytes_oldest_first_over_all_slots(hybrid: Engine) -> None:
    serve(hybrid, 0, SEQUENCE[:9])
    each = states_of(hybrid).nbytes // 2
    small = recurrent_engine(checkpoint_bytes=3 * each)
    serve(small, 0, SEQUENCE[:9])
    serve(small, 1, SEQUENCE[:12])
    assert states_of(small).nbytes == 3 * each
    assert [slot.checkpoints for slot in small.slots] == [{9}, {11, 12}, set()]
    with pytest.raises(LessonRefused) as refused:
        start_walk(small, 0, SEQUENCE, 9)
    assert refused.value.code == "recurrent_state_missing"
    assert small.slots[0].shared_with(SEQUENCE[:9], "base") == 0


def test_a_walk_keeps_the_states_it_began_from_when_their_checkpoint_is_evicted() -> None:
    shas = []
    for checkpoint_bytes in (1 << 20, 0):
        engine = recurrent_engine(checkpoint_bytes=checkpoint_bytes)
        labelled = lesson_rows(0, 8, SEQUENCE[8:20], SEQUENCE[9:21], [1.0] * 12)
        batch = Batch((*serving_rows(0, 0, SEQUENCE[:9], outputs=1), *labelled))
        walk = engine.step(batch, shadows={0: "shadow"}).walks[0]
        assert engine.slots[0].checkpoints == ({8, 9} if checkpoint_bytes else set())
        serve(engine, 0, [1])
        shas.append(finish(walk).step.sha_after)
    assert shas[0] == shas[1]


def test_a_pass_that_fails_leaves_every_state_as_it_was(hybrid: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(hybrid, 0, SEQUENCE[:PROMPT_TOKENS])
    before = held(hybrid)
    with monkeypatch.context() as broken:
        broken.setattr(hybrid.model, "finish", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            serve(hybrid, 0, [5])
    assert held(hybrid) == before
    own = own_logits("qwen3_5_text", [*SEQUENCE[:PROMPT_TOKENS], 5])[-1]
    assert difference(serve(hybrid, 0, [5]), own) < REORDERED


def test_what_a_turn_shares_with_a_slot_is_rounded_down_to_a_checkpoint() -> None:
    slot = Slot(0, tokens=list(range(20)), checkpoints={7, 8, 15})
    for shared, reusable in ((20, 20), (19, 15), (15, 15), (14, 8), (6, 0)):
        assert slot.shared_with([*range(shared), 99, 99], "base") == reusable
    assert slot.shared_with(range(8), "base") == 7, "the prompt's last row is served again"


def test_only_recurrent_layers_set_a_prompts_last_row_apart() -> None:
    run = Run(0, 0, serving_rows(0, 0, SEQUENCE[:10], outputs=1))
    for checkpoints, lengths in ((None, [4, 4, 2]), (set[int](), [4, 4, 1, 1])):
        passes = plan_passes([run], [Slot(0, checkpoints=checkpoints)], ubatch_rows=4)
        assert [len(part.tokens[0]) for part in passes] == lengths
        assert [token for part in passes for token in part.tokens[0]] == SEQUENCE[:10]
        assert passes[-1].ending == (() if checkpoints is None else (0,))


def turn(name: str, tokens: Sequence[int]) -> TurnOrder:
    return TurnOrder(name, tuple(tokens), 6, Sampling(temperature=0))


def lane_of(engine: Engine) -> Lane:
    return Lane(engine, Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")))


def drain(lane: Lane) -> list[Event]:
    events: list[Event] = []
    while lane.serving or lane.learning:
        events += lane.tick()
    return events


def served_turn(lane: Lane, tokens: Sequence[int]) -> TurnEnded:
    lane.submit(turn("t", tokens))
    return next(event for event in drain(lane) if isinstance(event, TurnEnded))


@pytest.mark.parametrize("family", RECURRENT)
def test_a_turn_that_goes_on_from_a_checkpoint_gives_the_tokens_of_a_fresh_slot(family: str) -> None:
    prompt, lane = SEQUENCE[:PROMPT_TOKENS], lane_of(recurrent_engine(family, slots=1))
    reply = served_turn(lane, prompt).reply_tokens
    continued = [*prompt, *reply, *random_tokens(5, seed=3)]
    other = [*prompt, (reply[0] + 1) % VOCABULARY, *random_tokens(4, seed=4)]
    for tokens, cached in ((continued, 28), (other, 23), (prompt, 22)):
        reused = served_turn(lane, tokens)
        fresh = served_turn(lane_of(recurrent_engine(family, slots=1)), tokens)
        assert (reused.cached_tokens, fresh.cached_tokens) == (cached, 0)
        assert reused.reply_tokens == fresh.reply_tokens


def test_a_reply_is_learned_while_the_next_turn_is_served(hybrid: Engine) -> None:
    prompt, lane = SEQUENCE[:PROMPT_TOKENS], lane_of(hybrid)
    reply = served_turn(lane, prompt).reply_tokens
    weights = (1.0,) * len(reply)
    run = (prompt[-1], *reply[:-1])
    lane.submit(
        turn("next", [*prompt, *reply, 3, 4]),
        [LessonOrder("l", "shadow", "base", tuple(prompt[:-1]), run, reply, weights, rides="next")],
    )
    outcome = next(event.outcome for event in drain(lane) if isinstance(event, LessonEnded))
    assert isinstance(outcome, LessonLearned), outcome


@pytest.mark.parametrize("family", ["bamba", "jamba", "mamba"])
def test_a_recurrent_family_that_is_not_known_is_refused_at_load(family: str) -> None:
    config = AutoConfig.for_model(family, **BASE | {"mamba_n_heads": 6, "mamba_d_head": 16, "num_experts": 2})
    with pytest.raises(ModelNotUsable, match=f"its family {family}"):
        Engine(AutoModelForCausalLM.from_config(config), EngineSettings(slots=1))
