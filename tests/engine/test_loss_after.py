"""A lesson's loss after its step: what it is, when it is measured, and that it costs the step nothing."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine import live_lesson, pace
from engine.engine import Engine
from engine.lane import Lane
from engine.loss_after import MeasureAfter
from engine.orders import Event, LessonEnded, LessonOrder, TurnOrder
from engine.sampling import Sampling
from engine.walk import LessonLearned
from tests.engine.tiny import random_tokens

PROMPT = random_tokens(20)


def lane_on(engine: Engine, measure: MeasureAfter) -> Lane:
    return Lane(engine, Tokenizer(WordLevel({"w0": 0}, unk_token="w0")), measure_after=measure)


def serve_prompt(lane: Lane, name: str = "a", *, reply_tokens: int = 2) -> None:
    lane.submit(TurnOrder(name, tuple(PROMPT), reply_tokens, Sampling(temperature=0)))


def learn(lane: Lane, name: str = "l", *, rides: str | None = None) -> None:
    weights = (1.0, 0.0, 0.5)
    lane.learn(
        LessonOrder(name, "shadow", "base", tuple(PROMPT[:-1]), (PROMPT[-1], 7, 8), (7, 8, 9), weights, rides)
    )


def drain(lane: Lane) -> list[Event]:
    events: list[Event] = []
    while lane.serving or lane.learning:
        events += lane.tick()
    return events


def learned(events: Sequence[Event]) -> LessonLearned:
    (ended,) = (event for event in events if isinstance(event, LessonEnded))
    assert isinstance(ended.outcome, LessonLearned), ended.outcome
    assert ended.snapshot is not None
    return ended.outcome


@pytest.fixture
def single_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is one piece, however short."""
    monkeypatch.setattr(pace, "SEGMENT_SECONDS", (0.0, 0.0))


def test_the_loss_after_a_step_is_the_one_before_the_next(engine: Engine) -> None:
    lane = lane_on(engine, "idle")
    serve_prompt(lane)
    drain(lane)
    learn(lane)
    first = learned(drain(lane))
    learn(lane, "again")
    second = learned(drain(lane))
    assert first.after is not None
    assert first.after.loss == pytest.approx(second.loss, rel=1e-5)
    assert first.after.loss != pytest.approx(first.loss, rel=1e-3)
    assert [loss is None for loss in first.after.row_losses] == [False, True, False]
    assert first.after.row_losses[::2] == pytest.approx(second.row_losses[::2], rel=1e-5)


@pytest.mark.parametrize(("measure", "measured"), [("idle", False), ("always", True), ("never", False)])
def test_beside_a_turn_it_is_measured_only_where_it_always_is(
    engine: Engine, measure: MeasureAfter, measured: bool
) -> None:
    lane = lane_on(engine, measure)
    lane.duty.share, lane.duty.patience_seconds = 1.0, 0.0
    serve_prompt(lane, reply_tokens=70)
    learn(lane, rides="a")
    events: list[Event] = []
    while not any(isinstance(event, LessonEnded) for event in events):
        assert lane.serving
        events += lane.tick()
    assert (learned(events).after is not None) is measured


def test_it_is_never_measured_where_it_is_not_asked_for(engine: Engine) -> None:
    lane = lane_on(engine, "never")
    serve_prompt(lane)
    drain(lane)
    learn(lane)
    assert learned(drain(lane)).after is None


def measuring(lane: Lane) -> None:
    """Go on until the pass after the step has begun."""
    serve_prompt(lane)
    drain(lane)
    learn(lane)
    while lane._walking is None or lane._walking.measuring is None:
        assert not any(isinstance(event, LessonEnded) for event in lane.tick())


@pytest.mark.usefixtures("single_pieces")
def test_a_turn_that_comes_meanwhile_ends_it_at_once(engine: Engine) -> None:
    lane = lane_on(engine, "idle")
    measuring(lane)
    serve_prompt(lane, "b")
    assert learned(lane.tick()).after is None


@pytest.mark.usefixtures("single_pieces")
def test_a_lesson_cancelled_meanwhile_is_learned(engine: Engine) -> None:
    lane = lane_on(engine, "always")
    measuring(lane)
    lane.cancel_lessons(["l"])
    assert learned(lane.drain()).after is None
    assert not lane.learning


def test_where_it_fails_the_step_stands(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_walk: object) -> object:
        raise MemoryError

    monkeypatch.setattr(live_lesson, "measure_after", fails)
    lane = lane_on(engine, "always")
    serve_prompt(lane)
    drain(lane)
    learn(lane)
    step = learned(drain(lane))
    assert step.after is None
    assert engine.bank.sha256("shadow") == step.step.sha_after != step.step.sha_before


@pytest.mark.usefixtures("single_pieces")
def test_a_loss_that_is_not_finite_is_not_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lane_on(engine, "idle")
    serve_prompt(lane)
    drain(lane)
    learn(lane)
    run = engine.model.logits
    while engine.shadows["shadow"].steps == 0:
        lane.tick()
    monkeypatch.setattr(engine.model, "logits", lambda states: run(states) * float("nan"))
    assert learned(drain(lane)).after is None
