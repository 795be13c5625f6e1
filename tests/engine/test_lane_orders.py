"""What a turn's order asks of the lane beside its reply: log-probabilities, a constraint, a slot kept on hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from engine.constraint import Constraint
from engine.engine import Engine
from engine.errors import TurnRejected
from engine.lane import Lane
from engine.orders import Event, LessonStarted, TokenServed, TurnStarted
from engine.sampling import Sampling
from engine.walk import LessonLearned
from tests.engine.test_lane import drain, ended, lesson, outcomes, turn
from tests.engine.test_sampling import Only
from tests.engine.tiny import VOCABULARY, random_tokens, serve


@pytest.fixture
def lane(engine: Engine) -> Lane:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    return Lane(engine, Tokenizer(WordLevel(words, unk_token="w0")))


class Broken(Only):
    """A constraint that raises what it should not."""

    def mask(self, logits: Tensor) -> None:
        raise KeyError(f"lost among {len(logits)}")


def told(events: list[Event], name: str) -> list[TokenServed]:
    return [event for event in events if isinstance(event, TokenServed) and event.turn == name]


def test_each_tokens_log_probability_is_the_models_own_whatever_else_is_asked(lane: Lane) -> None:
    prompt = random_tokens(9)
    asked = Sampling(temperature=0, logit_bias=((7, 100.0),), logprobs=4)
    lane.submit(replace(turn("a", prompt, reply_tokens=2), sampling=asked))
    first = told(drain(lane), "a")[0]
    raw = torch.log_softmax(serve(lane.engine, 1, prompt), dim=-1)
    assert first.token == 7
    assert first.logprob is not None
    assert first.logprob.logprob == pytest.approx(float(raw[7]), abs=1e-5)
    assert [token for token, _ in first.logprob.top] == raw.topk(4).indices.tolist()


def test_no_log_probabilities_are_told_that_were_not_asked_for(lane: Lane) -> None:
    lane.submit(turn("a", random_tokens(9)))
    lane.submit(replace(turn("b", random_tokens(9)), sampling=Sampling(temperature=0, logprobs=0)))
    events = drain(lane)
    assert all(event.logprob is None for event in told(events, "a"))
    assert all(event.logprob and event.logprob.token == event.token for event in told(events, "b"))
    assert [event.token for event in told(events, "a")] == [event.token for event in told(events, "b")]


def test_a_reply_keeps_to_its_constraint_and_ends_where_that_ends(lane: Lane) -> None:
    lane.submit(replace(turn("a", random_tokens(9), reply_tokens=50), constraint=lambda: Only(5, 3, 8)))
    lane.submit(turn("b", random_tokens(9, seed=1)))
    done = ended(drain(lane))
    assert (done["a"].reason, done["a"].reply_tokens) == ("stop", (5, 3, 8))
    assert done["b"].reason == "length"


def fails() -> Constraint:
    raise MemoryError("no room for a grammar")


@pytest.mark.parametrize(("constraint", "says"), [(lambda: Broken(5), "lost"), (fails, "no room for a grammar")])
def test_a_constraint_that_raises_ends_its_own_turn_and_no_other(
    lane: Lane, constraint: Callable[[], Constraint], says: str
) -> None:
    lane.submit(replace(turn("a", random_tokens(9)), constraint=constraint))
    lane.submit(turn("b", random_tokens(9, seed=1)))
    done = ended(drain(lane))
    assert done["a"].reason == "failed"
    assert says in str(done["a"].error)
    assert done["b"].reason == "length"
    assert not any(slot.busy for slot in lane.engine.slots)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(logit_bias=((VOCABULARY, 1.0),)), "tokens 0 to 100"),
        (Sampling(repetition_penalty=0.0), "penalty"),
        (Sampling(typical_p=-1.0), "typical_p"),
    ],
)
def test_sampling_that_cannot_be_done_is_rejected_before_the_turn_is_queued(
    lane: Lane, sampling: Sampling, says: str
) -> None:
    with pytest.raises(TurnRejected, match=says):
        lane.submit(replace(turn("a", random_tokens(9)), sampling=sampling))
    assert not lane.serving


@pytest.mark.parametrize("unknown", [VOCABULARY, -1])
def test_a_prompt_with_a_token_that_the_model_has_not_is_rejected_before_the_turn_is_queued(
    lane: Lane, unknown: int
) -> None:
    with pytest.raises(TurnRejected, match=f"the prompt has token {unknown}"):
        lane.submit(turn("a", [3, unknown, 4]))
    assert not lane.serving


def held(lane: Lane, name: str, tokens: list[int], *, slot: int = 0) -> None:
    """Serve a turn to its end whose slot stays on hold."""
    lane.submit(replace(turn(name, tokens, slot=slot), hold=True))
    assert ended(drain(lane))[name].slot == slot


def test_a_held_slot_is_taken_by_no_turn_until_it_is_let_go(lane: Lane) -> None:
    prompt = random_tokens(20)
    held(lane, "a", prompt)
    lane.submit(turn("b", [*prompt, 7]))
    assert ended(drain(lane))["b"].slot != 0, "it would go on from the held slot"
    lane.submit(turn("c", prompt, slot=0))
    lane.tick()
    assert lane.serving
    assert not lane.has_work, "a tick cannot do anything for it"
    lane.let_go("a")
    assert lane.has_work
    assert ended(drain(lane))["c"].slot == 0


def test_a_lesson_that_rides_no_turn_starts_on_a_held_slot(lane: Lane) -> None:
    prompt = random_tokens(20)
    held(lane, "a", prompt, slot=1)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    events = drain(lane)
    started = next(event for event in events if isinstance(event, LessonStarted))
    assert (started.slot, started.turn) == (1, None)
    assert isinstance(outcomes(events)["l"], LessonLearned)
    assert lane.engine.slots[1].busy, "it is let go by whoever held it, not by the lesson"


def test_a_lesson_that_rides_a_held_turn_starts_on_its_slot_though_another_holds_its_prefix(
    lane: Lane,
) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("other", prompt, slot=0))
    drain(lane)
    held(lane, "a", prompt, slot=1)
    lane.learn(replace(lesson("l", [*prompt, 7, 8, 9], len(prompt)), rides="a"))
    events = drain(lane)
    started = next(event for event in events if isinstance(event, LessonStarted))
    assert (started.slot, started.turn) == (1, "a")
    assert isinstance(outcomes(events)["l"], LessonLearned)


def test_a_lesson_on_a_held_slot_is_learned_though_a_turn_waits_for_the_slot(lane: Lane) -> None:
    prompt = random_tokens(20)
    held(lane, "a", prompt)
    lane.submit(turn("b", random_tokens(20, seed=3), slot=0))
    lane.tick()
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    events: list[Event] = []
    while lane.has_work:
        events += lane.tick()
    assert isinstance(outcomes(events)["l"], LessonLearned)
    lane.let_go("a")
    assert any(isinstance(event, TurnStarted) for event in lane.tick())


def test_letting_go_is_idempotent_and_of_an_unknown_turn_nothing(lane: Lane) -> None:
    held(lane, "a", random_tokens(20))
    lane.let_go("a")
    lane.submit(turn("b", random_tokens(9), slot=0))
    lane.tick()
    lane.let_go("a")
    lane.let_go("nobody")
    assert lane.engine.slots[0].busy, "the slot is another turn's now"


@pytest.mark.parametrize("stop", [Lane.cancel, Lane.let_go])
def test_a_turn_let_go_before_its_end_holds_nothing_after_it(
    lane: Lane, stop: Callable[[Lane, str], None]
) -> None:
    lane.submit(replace(turn("a", random_tokens(9)), hold=True))
    lane.tick()
    stop(lane, "a")
    drain(lane)
    assert not any(slot.busy for slot in lane.engine.slots)


def test_cancelling_an_ended_turn_lets_its_slot_go(lane: Lane) -> None:
    held(lane, "a", random_tokens(20))
    lane.cancel("a")
    assert not lane.engine.slots[0].busy


def test_the_stable_set_of_a_held_slot_is_kept(lane: Lane) -> None:
    lane.engine.bank.create("own", seed=3)
    prompt = random_tokens(20)
    lane.submit(replace(turn("a", prompt, slot=0), stable="own", hold=True))
    drain(lane)
    lane.retire_stables(())
    assert "own" in lane.engine.bank
    assert lane.engine.slots[0].tokens[:20] == prompt
    lane.let_go("a")
    lane.retire_stables(())
    assert "own" not in lane.engine.bank
