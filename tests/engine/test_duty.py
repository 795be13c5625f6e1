"""Duty, on a simulated clock."""

from hypothesis import given
from hypothesis import strategies as st

from engine.duty import DutyMeter

SEGMENTS = st.lists(st.floats(min_value=0.001, max_value=0.25), min_size=1, max_size=60)


def test_while_someone_is_served_a_segment_is_followed_by_nine_times_its_length() -> None:
    meter = DutyMeter()
    meter.learned(started=10.0, ended=11.0)
    assert not meter.may_learn(19.9, serving=True)
    assert meter.may_learn(20.0, serving=True)


def test_with_every_slot_idle_a_segment_may_run_at_once() -> None:
    meter = DutyMeter()
    meter.learned(started=10.0, ended=11.0)
    assert meter.may_learn(11.0, serving=False)


def test_the_first_segment_may_run_at_once() -> None:
    assert DutyMeter().may_learn(0.0, serving=True)


def test_a_patient_meter_waits_for_a_pause_and_learns_anyway_when_none_comes() -> None:
    meter = DutyMeter(patience_seconds=5.0)
    assert not meter.may_learn(100.0, serving=True)
    assert meter.wait_seconds(101.0, serving=True) == 4.0
    assert meter.may_learn(104.0, serving=False)
    assert not meter.may_learn(105.0, serving=True), "patience begins anew after a pause"
    assert not meter.may_learn(109.9, serving=True)
    assert meter.may_learn(110.0, serving=True)
    meter.learned(started=110.0, ended=111.0)
    assert meter.wait_seconds(111.0, serving=True) == 9.0
    assert meter.may_learn(120.0, serving=True), "once it has learned beside serving, only the duty holds it back"


@given(segments=SEGMENTS, share=st.sampled_from([0.05, 0.1, 0.5]), step=st.floats(min_value=0.001, max_value=0.05))
def test_learning_never_takes_more_than_its_share_up_to_the_start_of_any_segment(
    segments: list[float], share: float, step: float
) -> None:
    meter, now, learned = DutyMeter(share), 0.0, 0.0
    first = None
    for seconds in segments:
        while not meter.may_learn(now, serving=True):
            now += step
        first = now if first is None else first
        if now > first:
            assert learned <= share * (now - first) * (1 + 1e-9)
        meter.learned(started=now, ended=now + seconds)
        now, learned = now + seconds, learned + seconds


@given(segments=SEGMENTS)
def test_learning_is_never_starved_when_idle(segments: list[float]) -> None:
    meter, now = DutyMeter(), 0.0
    for seconds in segments:
        assert meter.may_learn(now, serving=False)
        meter.learned(started=now, ended=now + seconds)
        now += seconds
