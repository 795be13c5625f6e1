"""The lane: what it serves is what transformers generates, and lessons ride its batches."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM

from engine import pace
from engine.duty import DutyMeter
from engine.engine import Engine, EngineSettings
from engine.errors import LessonRefused, TurnRejected
from engine.lane import Lane
from engine.lora import tensors_sha256
from engine.orders import Event, LessonEnded, LessonOrder, LessonStarted, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampling
from engine.walk import LessonLearned
from engine.weights import LoadedModel
from tests.engine.tiny import VOCABULARY, random_tokens, tiny_model

GREEDY = Sampling(temperature=0)
QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain to a child why the sky is blue.",
    "List three colours and one animal for each.",
    "Who wrote Hamlet, and when?",
)


@pytest.fixture
def lane(engine: Engine) -> Lane:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    return Lane(engine, Tokenizer(WordLevel(words, unk_token="w0")))


def turn(name: str, tokens: Sequence[int], *, reply_tokens: int = 6, slot: int | None = None) -> TurnOrder:
    return TurnOrder(name, tuple(tokens), reply_tokens, GREEDY, slot=slot)


def lesson(name: str, sequence: Sequence[int], first_target: int, *, rides: str | None = None) -> LessonOrder:
    run = sequence[first_target - 1 : -1]
    return LessonOrder(
        id=name,
        shadow="shadow",
        stable="base",
        prefix=tuple(sequence[: first_target - 1]),
        tokens=tuple(run),
        targets=tuple(sequence[first_target:]),
        weights=(1.0,) * len(run),
        rides=rides,
    )


def drain(lane: Lane) -> list[Event]:
    """Tick until nothing is served and nothing is learned."""
    events: list[Event] = []
    while lane.serving or lane.learning:
        events += lane.tick()
    return events


def ended(events: Sequence[Event]) -> dict[str, TurnEnded]:
    return {event.turn: event for event in events if isinstance(event, TurnEnded)}


def outcomes(events: Sequence[Event]) -> dict[str, LessonLearned | LessonRefused]:
    return {event.lesson: event.outcome for event in events if isinstance(event, LessonEnded)}


def test_greedy_replies_equal_generate_token_for_token_alone_and_four_together(smollm: LoadedModel) -> None:
    tokenizer = smollm.tokenizer
    prompts = [
        tokenizer.encode(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
            )
        )
        for question in QUESTIONS
    ]
    reference = AutoModelForCausalLM.from_pretrained(smollm.directory, dtype=torch.float32).eval()
    expected = [
        reference.generate(torch.tensor([p]), max_new_tokens=64, do_sample=False)[0, len(p) :].tolist()
        for p in prompts
    ]
    engine = Engine(smollm.model, EngineSettings(slots=4, context_tokens=160))
    lane = Lane(engine, tokenizer.backend_tokenizer)
    orders = [TurnOrder(str(i), tuple(p), 64, GREEDY, end_tokens=smollm.end_tokens) for i, p in enumerate(prompts)]
    alone = []
    for order in orders:
        lane.submit(order)
        alone.append(list(ended(drain(lane))[order.id].reply_tokens))
    for order in orders:
        lane.submit(order)
    together = ended(drain(lane))
    engine.close()
    assert alone == expected
    assert [list(together[order.id].reply_tokens) for order in orders] == expected


def test_a_prompt_that_goes_on_from_a_slot_decodes_only_its_new_tokens(lane: Lane) -> None:
    prompt = random_tokens(30)
    lane.submit(turn("a", prompt))
    first = ended(drain(lane))["a"]
    longer = [*prompt, *first.reply_tokens, *random_tokens(5, seed=3)]
    lane.submit(turn("b", longer))
    second = ended(drain(lane))["b"]
    assert second.slot == first.slot
    assert second.cached_tokens == len(prompt) + len(first.reply_tokens) - 1
    assert second.reply_tokens == ended(replay(longer))["b"].reply_tokens


def replay(tokens: Sequence[int]) -> list[Event]:
    """The same turn on a fresh lane."""
    engine = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=96, ubatch_rows=16))
    fresh = Lane(engine, Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")))
    fresh.submit(turn("b", tokens))
    return drain(fresh)


def test_a_conversation_is_not_wiped_out_by_another_that_shares_its_opening(lane: Lane) -> None:
    opening = random_tokens(6)
    lane.submit(turn("a", [*opening, *random_tokens(30, seed=1)]))
    first = ended(drain(lane))["a"]
    lane.submit(turn("b", [*opening, *random_tokens(4, seed=2)]))
    assert ended(drain(lane))["b"].slot != first.slot


def test_more_turns_than_slots_are_all_served(lane: Lane) -> None:
    for i in range(8):
        lane.submit(turn(str(i), random_tokens(5 + i, seed=i)))
    done = ended(drain(lane))
    assert set(done) == {str(i) for i in range(8)}
    assert all(event.reason == "length" and len(event.reply_tokens) == 6 for event in done.values())


def test_a_cancelled_turn_frees_its_slot_at_once_and_the_others_go_on(lane: Lane) -> None:
    lane.submit(turn("a", random_tokens(9), reply_tokens=50))
    lane.submit(turn("b", random_tokens(9, seed=1)))
    while not any(isinstance(event, TokenServed) and event.turn == "a" for event in lane.tick()):
        pass
    lane.cancel("a")
    assert sum(slot.busy for slot in lane.engine.slots) <= 1
    done = ended(drain(lane))
    assert done["a"].reason == "cancelled"
    assert done["b"].reason == "length"


def test_a_turn_cancelled_while_it_waits_ends_without_a_slot(lane: Lane) -> None:
    for i in range(4):
        lane.submit(turn(str(i), random_tokens(9, seed=i)))
    lane.tick()
    lane.cancel("3")
    done = ended(drain(lane))
    assert (done["3"].reason, done["3"].slot) == ("cancelled", None)


def test_a_reply_ends_where_the_context_does(lane: Lane) -> None:
    lane.submit(turn("a", random_tokens(90), reply_tokens=50))
    done = ended(drain(lane))["a"]
    assert done.reason == "length"
    assert len(done.reply_tokens) == 96 - 90 + 1


@pytest.mark.parametrize("count", [0, 96])
def test_a_prompt_that_leaves_no_room_for_a_reply_is_rejected(lane: Lane, count: int) -> None:
    with pytest.raises(TurnRejected, match="between 1 and 95"):
        lane.submit(turn("a", random_tokens(count)))


def test_a_lesson_rides_the_turn_it_was_ordered_for(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    drain(lane)
    lane.submit(turn("b", [*prompt, *random_tokens(9, seed=2)]))
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt), rides="b"))
    events = drain(lane)
    started = next(event for event in events if isinstance(event, LessonStarted))
    assert (started.turn, started.slot) == ("b", ended(events)["b"].slot)
    assert isinstance(outcomes(events)["l"], LessonLearned)


def test_a_reply_is_the_same_with_a_lesson_riding_and_without(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt, reply_tokens=40))
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt), rides="a"))
    events = drain(lane)
    assert isinstance(outcomes(events)["l"], LessonLearned)
    engine = Engine(tiny_model(), EngineSettings(slots=1, context_tokens=96, ubatch_rows=16))
    plain = Lane(engine, lane._tokenizer)
    plain.submit(turn("a", prompt, reply_tokens=40))
    assert ended(events)["a"].reply_tokens == ended(drain(plain))["a"].reply_tokens


def test_a_lesson_whose_prefix_was_not_served_is_refused_where_it_differs_and_the_turn_goes_on(
    lane: Lane,
) -> None:
    prompt = random_tokens(20)
    other = [*prompt[:11], (prompt[11] + 1) % VOCABULARY, *prompt[12:]]
    sha = lane.engine.bank.sha256("shadow")
    lane.submit(turn("a", other))
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt), rides="a"))
    events = drain(lane)
    refused = outcomes(events)["l"]
    assert isinstance(refused, LessonRefused)
    assert (refused.code, refused.position) == ("unserved_prefix", 11)
    assert f"the prefix has token {prompt[11]}" in refused.message
    assert ended(events)["a"].reason == "length"
    assert lane.engine.bank.sha256("shadow") == sha


def test_a_lesson_past_the_context_is_refused_and_the_turn_goes_on(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    lane.learn(lesson("l", [*prompt, *random_tokens(90)], len(prompt), rides="a"))
    events = drain(lane)
    refused = outcomes(events)["l"]
    assert isinstance(refused, LessonRefused)
    assert refused.code == "past_context"
    assert ended(events)["a"].reason == "length"


def test_lessons_of_one_turn_are_walked_one_after_another_in_the_order_given(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    for name in ("first", "second", "third"):
        lane.learn(lesson(name, [*prompt, 7, 8, 9], len(prompt), rides="a"))
    events = drain(lane)
    learned = list(outcomes(events).items())
    assert [name for name, _ in learned] == ["first", "second", "third"]
    steps = [outcome.step for _, outcome in learned if isinstance(outcome, LessonLearned)]
    assert [step.sha_before for step in steps[1:]] == [step.sha_after for step in steps[:-1]]


def test_a_lesson_that_rides_no_turn_runs_while_the_lane_is_idle(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    drain(lane)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    assert isinstance(outcomes(drain(lane))["l"], LessonLearned)


def test_a_cancelled_lesson_ends_as_such_and_a_later_one_is_learned(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    drain(lane)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    lane.tick()
    lane.cancel_lessons(["l"])
    lane.learn(lesson("m", [*prompt, 7, 8, 9], len(prompt)))
    done = outcomes(drain(lane))
    assert isinstance(done["l"], LessonRefused)
    assert done["l"].code == "cancelled"
    assert isinstance(done["m"], LessonLearned)


@pytest.fixture
def single_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is one piece of a walk, however short."""
    monkeypatch.setattr(pace, "SEGMENT_SECONDS", (0.0, 0.0))


@pytest.mark.usefixtures("single_pieces")
def test_a_lesson_cancelled_after_its_step_is_learned(lane: Lane) -> None:
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    drain(lane)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    shadow = lane.engine.shadows["shadow"]
    while shadow.steps == 0:
        assert not outcomes(lane.tick())
    lane.cancel_lessons(["l"])
    shadow.restore(before := shadow.snapshot())
    (ended,) = (event for event in lane.drain() if isinstance(event, LessonEnded))
    assert isinstance(ended.outcome, LessonLearned)
    assert ended.snapshot is not None
    assert tensors_sha256(ended.snapshot) == tensors_sha256(before)
    assert not lane.learning


def test_a_segment_is_as_many_pieces_as_fit_into_its_time(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SEGMENT_SECONDS", (60.0, 60.0))
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt))
    drain(lane)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    lane.tick()
    assert isinstance(outcomes(lane.tick())["l"], LessonLearned)


def test_a_turn_waits_rather_than_overwrite_the_prefix_a_walk_reads(engine: Engine) -> None:
    ticks = itertools.count()
    meter = DutyMeter(share=0.5)
    lane = Lane(
        engine, Tokenizer(WordLevel({"w0": 0}, unk_token="w0")), duty=meter, clock=lambda: float(next(ticks))
    )
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt, slot=0))
    drain(lane)
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt)))
    lane.tick()
    lane.submit(turn("b", random_tokens(20, seed=9), slot=0))
    events = drain(lane)
    order = [event.__class__.__name__ for event in events if isinstance(event, LessonEnded | TurnEnded)]
    assert order == ["LessonEnded", "TurnEnded"]
    assert isinstance(outcomes(events)["l"], LessonLearned)


@pytest.mark.usefixtures("single_pieces")
def test_learning_keeps_to_its_duty_while_a_turn_is_served(engine: Engine) -> None:
    clock = itertools.count()
    lane = Lane(engine, Tokenizer(WordLevel({"w0": 0}, unk_token="w0")), clock=lambda: float(next(clock)))
    prompt = random_tokens(20)
    lane.submit(turn("a", prompt, reply_tokens=70))
    lane.learn(lesson("l", [*prompt, 7, 8, 9], len(prompt), rides="a"))
    segments = []
    advance = lane._advance_walk

    def watched() -> None:
        before = len(lane._walking.walk._seconds) if lane._walking else 0
        advance()
        segments.append(len(lane._walking.walk._seconds) > before if lane._walking else False)

    lane._advance_walk = watched  # type: ignore[method-assign]
    while lane.serving:
        lane.tick()
    assert 0 < sum(segments) <= 0.5 * len(segments), "a segment in every tick is no duty at all"
