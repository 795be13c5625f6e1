import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from signals.plans import LessonPlan
from signals.records import (
    MAX_LABELS,
    MAX_SIGNALS,
    MAX_TEXT_CHARS,
    Action,
    Correction,
    Engram,
    Labels,
    Message,
    Relevance,
    ReplyMessage,
    Signal,
    Turn,
    Verdict,
    canonical_json,
    fingerprint_of,
    parse_signal,
    parse_signals,
)

Body = dict[str, Any]

BASE: Body = {"id": "s1", "agent": "ada"}
ENGRAM: Body = {**BASE, "kind": "engram", "turn": "t1", "origin": "human", "message": 0}
RELEVANCE: Body = {**BASE, "kind": "relevance", "engram": "s0", "relevance": 0.5}
CORRECTION: Body = {**BASE, "kind": "correction", "turn": "t1", "reply": "better"}
LABELS: Body = {**BASE, "kind": "labels", "turn": "t1", "labels": [{"message": 0}]}
ACTION: Body = {**BASE, "kind": "action", "turn": "t1"}
VERDICT: Body = {**BASE, "kind": "verdict", "turn": "t1", "outcome": "failed"}
PLAN: Body = {
    "agent": "ada",
    "context": "",
    "turn": "t1",
    "kind": "action",
    "signals": ("s1",),
    "prefix_tokens": 2,
    "prefix": (5, 6),
    "tokens": (7, 8),
    "targets": (8, 9),
    "weights": (0.5, 0.0),
}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ENGRAM, Engram),
        (RELEVANCE, Relevance),
        (CORRECTION, Correction),
        (LABELS, Labels),
        (ACTION, Action),
        (VERDICT, Verdict),
    ],
)
def test_the_kind_decides_what_a_signal_is(body: Body, kind: type[Signal]) -> None:
    assert type(parse_signal(body)) is kind


@pytest.mark.parametrize("body", [ENGRAM, RELEVANCE, CORRECTION, LABELS, ACTION, VERDICT])
def test_a_signal_reads_back_from_its_canonical_json(body: Body) -> None:
    signal = parse_signal({**body, "at": "2031-05-01T12:00:00Z"})
    assert parse_signal(json.loads(canonical_json(signal))) == signal


@pytest.mark.parametrize("body", [ENGRAM, RELEVANCE, CORRECTION, LABELS, ACTION, VERDICT])
def test_an_unknown_field_is_refused_by_name(body: Body) -> None:
    with pytest.raises(ValidationError, match="weight"):
        parse_signal({**body, "weight": 1.0})


@pytest.mark.parametrize("body", [None, "engram", 3, [], {}, {"kind": "dream"}, {"kind": ["engram"]}])
def test_what_is_not_a_signal_is_refused(body: object) -> None:
    with pytest.raises(ValidationError):
        parse_signal(body)


def fingerprint(signal: Signal) -> str:
    """As a signal's is taken: of its JSON."""
    return fingerprint_of(signal.model_dump(mode="json"))


def test_one_signal_and_a_list_of_one_read_the_same() -> None:
    assert parse_signals(ACTION) == parse_signals([ACTION]) == [parse_signal(ACTION)]


@pytest.mark.parametrize("count", [0, MAX_SIGNALS + 1])
def test_a_list_of_none_or_too_many_is_refused(count: int) -> None:
    with pytest.raises(ValidationError):
        parse_signals([ACTION] * count)


@pytest.mark.parametrize("signal_id", ["", "a\nb", "a\x00", "a\x85", "x" * 201, "\ud800", 7])
def test_an_id_that_is_no_plain_line_is_refused(signal_id: object) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**ACTION, "id": signal_id})


@pytest.mark.parametrize("agent", ["ada", "Ada.2_x@home-1", "7", "x" * 100])
def test_an_agent_is_named_by_letters_digits_and_few_signs(agent: str) -> None:
    assert parse_signal({**ACTION, "agent": agent}).agent == agent


@pytest.mark.parametrize("agent", ["", ".ada", "-", "a b", "ada\n", "ádá", "x" * 101])
def test_any_other_agent_name_is_refused(agent: str) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**ACTION, "agent": agent})


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        parse_signal({**ACTION, "at": "2031-05-01T12:00:00"})


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
def test_a_time_outside_the_calendar_is_refused(at: str) -> None:
    with pytest.raises(ValidationError, match="outside the years"):
        parse_signal({**ACTION, "at": at})


@pytest.mark.parametrize(
    "given",
    [
        {"reply": None},
        {"reply_tokens": [1]},
        {"reply": None, "reply_tokens": []},
        {"reply": None, "reply_tokens": [-1]},
        {"reply": None, "reply_tokens": [2**31]},
        {"prefix_tokens": 0},
        {"prefix_tokens": 2, "messages": [{"role": "user", "content": "hi"}]},
        {"messages": []},
        {"template_args": {}},
        {"turn": None},
        {"lr": 0},
        {"lr": 1.5},
        {"lr": "0.1"},
    ],
)
def test_a_correction_says_one_reply_after_one_thing(given: Body) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**CORRECTION, **given})


def test_a_correction_of_a_conversation_needs_no_turn() -> None:
    given = {"turn": None, "messages": [{"role": "user", "content": "hi"}], "template_args": {"thinking": False}}
    assert parse_signal({**CORRECTION, **given}).kind == "correction"


@pytest.mark.parametrize(
    "label",
    [
        {},
        {"message": -1},
        {"message": 0, "start": 1},
        {"message": 0, "end": 1},
        {"message": 0, "start": 2, "end": 2},
        {"message": 0, "weight": 0},
        {"message": 0, "weight": 1.01},
        {"message": 0, "weight": float("nan")},
        {"message": 0, "quote": "x"},
    ],
)
def test_a_label_is_a_span_with_a_weight_above_0_and_at_most_1(label: Body) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**LABELS, "labels": [label]})


@pytest.mark.parametrize("count", [0, MAX_LABELS + 1])
def test_no_labels_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**LABELS, "labels": [{"message": 0}] * count})


@pytest.mark.parametrize(
    "pointing",
    [
        {"message": 2},
        {"message": 0, "start": 3, "end": 4},
        {"quote": "exactly"},
        {"quote": "exactly", "message": 1},
    ],
)
def test_an_engram_points_in_any_of_the_four_ways(pointing: Body) -> None:
    engram = Engram.model_validate({**ENGRAM, "message": None, **pointing})
    assert engram.whole_message == (pointing == {"message": 2})


@pytest.mark.parametrize(
    "pointing",
    [
        {},
        {"start": 0, "end": 1},
        {"quote": ""},
        {"quote": "x", "start": 0, "end": 1},
        {"message": 0, "quote": "x", "start": 0, "end": 1},
        {"message": 0, "start": 1},
        {"message": 0, "end": 1},
        {"message": 0, "start": 2, "end": 2},
        {"message": 0, "start": 3, "end": 2},
        {"message": -1},
        {"message": "0"},
        {"message": True},
        {"message": 0, "start": -1, "end": 2},
        {"quote": "x" * (MAX_TEXT_CHARS + 1)},
    ],
)
def test_any_other_pointing_is_refused(pointing: Body) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**ENGRAM, "message": None, **pointing})


@pytest.mark.parametrize("relevance", [-0.1, 1.1, float("nan"), float("inf"), "0.5", True, None])
@pytest.mark.parametrize("body", [ENGRAM, RELEVANCE, CORRECTION, ACTION])
def test_a_relevance_that_is_no_number_from_0_to_1_is_refused(body: Body, relevance: object) -> None:
    with pytest.raises(ValidationError):
        parse_signal({**body, "relevance": relevance})


@pytest.mark.parametrize(
    "body",
    [
        {**ENGRAM, "turn": "\ud800"},
        {**ENGRAM, "message": None, "quote": "a\udfff"},
        {**ACTION, "context": "\ud800"},
        {**CORRECTION, "reply": "\ud83d"},
        {**CORRECTION, "reply": {"content": "\ud83d"}},
        {**CORRECTION, "reply": {"reasoning_content": "\ud83d"}},
        {**CORRECTION, "reply": {"tool_calls": [{"name": "\ud83d"}]}},
        {**CORRECTION, "reply": {"tool_calls": [{"\ud83d": 1}]}},
    ],
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(body: Body) -> None:
    with pytest.raises(ValidationError):
        parse_signal(body)


def test_a_tool_call_that_json_cannot_write_is_refused() -> None:
    with pytest.raises(ValidationError):
        ReplyMessage(tool_calls=({"temperature": float("nan")},))


@pytest.mark.parametrize("field", ["id", "turn"])
def test_a_signal_does_not_change_once_made(field: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(parse_signal(ACTION), field, "s2")


def test_the_fingerprint_does_not_see_how_the_same_body_was_spelled() -> None:
    spelled_out = {"relevance": 1, "context": "", **dict(reversed(ACTION.items()))}
    assert fingerprint(parse_signal(spelled_out)) == fingerprint(parse_signal(ACTION))


def test_the_fingerprint_does_not_see_the_order_of_keys_in_a_tool_call() -> None:
    call = {"name": "f", "arguments": {"x": 1, "y": 2}}
    turned = {"arguments": {"y": 2, "x": 1}, "name": "f"}
    one, other = (parse_signal({**CORRECTION, "reply": {"tool_calls": [c]}}) for c in (call, turned))
    assert fingerprint(one) == fingerprint(other)


def test_the_fingerprint_does_not_see_the_zone_an_instant_was_told_in() -> None:
    here = parse_signal({**ACTION, "at": "2031-05-01T12:00:00+02:00"})
    there = parse_signal({**ACTION, "at": "2031-05-01T10:00:00Z"})
    assert fingerprint(here) == fingerprint(there)


@pytest.mark.parametrize(
    "change", [{"relevance": 0.5}, {"message": 1}, {"origin": "peer"}, {"context": "x"}, {"turn": "t2"}]
)
def test_another_body_has_another_fingerprint(change: Body) -> None:
    assert fingerprint(parse_signal({**ENGRAM, **change})) != fingerprint(parse_signal(ENGRAM))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@given(body=JSON, field=st.sampled_from(["id", "at", "turn", "reply", "origin", "relevance", "kind"]))
def test_whatever_stands_in_a_field_is_read_or_refused_and_what_is_read_can_be_written(
    body: object, field: str
) -> None:
    try:
        signal = parse_signal({**CORRECTION, field: body})
    except ValidationError:
        return
    assert parse_signal(json.loads(canonical_json(signal).encode())) == signal


@given(body=JSON)
def test_whatever_is_sent_is_refused_unless_it_is_signals(body: object) -> None:
    with pytest.raises(ValidationError):
        parse_signals(body)


def test_a_message_hands_the_template_only_what_it_has() -> None:
    assert Message(role="user", content="hi").for_template() == {"role": "user", "content": "hi"}
    called = Message(role="assistant", content="", tool_calls=({"name": "f"},))
    assert called.for_template() == {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}


def test_template_arguments_that_json_cannot_write_are_refused() -> None:
    body = {**BASE, "messages": (), "prompt_tokens": (), "reply_tokens": (), "reply_text": "", "adapter": "a"}
    assert Turn.model_validate({**body, "context_tokens": 8}).reply_index == 0
    with pytest.raises(ValidationError):
        Turn.model_validate({**body, "context_tokens": 8, "template_args": {"x": float("inf")}})


def test_a_plan_knows_its_last_position() -> None:
    assert LessonPlan.model_validate(PLAN).last_position == 3


@pytest.mark.parametrize(
    "change",
    [
        {"prefix_tokens": 3},
        {"tokens": (7,)},
        {"targets": (8, 9, 10)},
        {"weights": (1.0,)},
        {"tokens": (), "targets": (), "weights": ()},
        {"weights": (1.0, float("nan"))},
        {"weights": (1.0, float("inf"))},
        {"weights": (1.0, -0.5)},
        {"signals": ()},
        {"kind": "verdict"},
        {"tokens": (7, -1)},
    ],
)
def test_a_plan_that_is_not_one_weighted_run_is_refused(change: Body) -> None:
    with pytest.raises(ValidationError):
        LessonPlan.model_validate({**PLAN, **change})
