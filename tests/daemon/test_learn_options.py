"""The `learn` object of a request: one model for every dialect, which says what is ill-formed by its name."""

from typing import Any

import pytest
from pydantic import ValidationError

from daemon.dialects.learn import MAX_LEARN_WAIT_SECONDS, LearnOptions
from daemon.http.speaker import Speaker
from signals.records import Correction, Label, Labels, Message, ReplyMessage
from tests.daemon.conftest import Running

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/completions", {"prompt": "hello"}),
]


ADA = Speaker(agent="ada", context="room")
HELLO = {"role": "user", "content": "hello"}
SO = {"role": "assistant", "content": "so"}


def test_everything_that_may_be_said_is_read_and_becomes_a_signal_of_the_turn() -> None:
    whose = {"id": "learn-t1", "agent": "ada", "context": "room", "turn": "t1"}
    said = LearnOptions.model_validate({"reply": "so", "lr": 0.1})
    assert said.correction_of("t1", ADA) == Correction(**whose, reply="so", lr=0.1)
    said = LearnOptions.model_validate({"messages": [{**HELLO, "role": "developer"}, SO]})
    before = (Message(role="system", content="hello"),)
    assert said.correction_of("t1", ADA) == Correction(**whose, messages=before, reply=ReplyMessage(content="so"))
    labels = [{"message": 0}, {"message": 1, "start": 2, "end": 5, "weight": 0.5}]
    said = LearnOptions.model_validate({"labels": labels})
    pointed = (Label(message=0), Label(message=1, start=2, end=5, weight=0.5))
    assert said.labels_of("t1", ADA) == Labels(**whose, labels=pointed)
    assert said.correction_of("t1", ADA) is None


def test_the_answer_waits_for_a_lesson_that_it_asks_for_and_for_no_other() -> None:
    assert LearnOptions().wait_seconds == 0
    assert not LearnOptions().asks
    assert LearnOptions(reply="so").wait_seconds == MAX_LEARN_WAIT_SECONDS
    assert LearnOptions(reply="so", wait=5).wait_seconds == 5
    assert LearnOptions(wait=5).wait_seconds == 5


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"reply": ""}, "reply"),
        ({"reply": "\ud800"}, "reply"),
        ({"reply": "x", "lr": 0}, "lr"),
        ({"reply": "x", "lr": 1.5}, "lr"),
        ({"wait": 601}, "wait"),
        ({"labels": []}, "labels"),
        ({"labels": [{"message": -1}]}, "labels"),
        ({"labels": [{"message": 0, "start": 1}]}, "labels"),
        ({"labels": [{"message": 0, "start": 2, "end": 2}]}, "labels"),
        ({"labels": [{"message": 0, "weight": 0}]}, "labels"),
        ({"labels": [{"message": 0, "weight": float("nan")}]}, "labels"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [SO]}, "messages"),
        ({"soon": True}, "soon"),
    ],
)
def test_what_is_ill_formed_is_refused(said: dict[str, Any], param: str) -> None:
    with pytest.raises(ValidationError) as refused:
        LearnOptions.model_validate(said)
    assert refused.value.errors()[0]["loc"][0] == param


@pytest.mark.parametrize(
    "said",
    [
        {"lr": 0.1},
        {"reply": "so", "labels": [{"message": 0}]},
        {"reply": "so", "messages": [HELLO, SO]},
        {"messages": [SO, HELLO]},
    ],
)
def test_a_request_asks_for_one_lesson_that_ends_in_a_reply(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LearnOptions.model_validate(said)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
@pytest.mark.parametrize(
    ("said", "param"),
    [({"reply": ""}, "learn.reply"), ({"lr": 0.1}, "learn"), ({"soon": True}, "learn.soon")],
)
async def test_what_is_ill_formed_is_refused_by_name_before_anything_is_served(
    running: Running, path: str, body: dict[str, Any], said: dict[str, Any], param: str
) -> None:
    status, told = await running.post(path, {"model": "tiny-chat", "learn": said} | body)
    assert (status, told["error"]["param"]) == (400, param)
    assert not (await running.get("/ledger"))["rows"]


async def test_of_several_replies_none_is_the_one_that_a_lesson_is_about(running: Running) -> None:
    answer = await running.ask(n=2, learn={"reply": "so"})
    assert (answer["status"], answer["error"]["param"]) == (400, "learn")


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_every_answer_has_one_learn_object(running: Running, path: str, body: dict[str, Any]) -> None:
    asked = {"model": "tiny-chat", "temperature": 0, "max_tokens": 4} | body
    _, whole = await running.post(path, asked)
    events = await running.events(path, asked | {"stream": True})
    assert whole["learn"] == {"lessons": []}
    *earlier, last, done = events
    assert done == {"data": "[DONE]"}
    assert last["data"]["learn"] == {"lessons": []}
    assert not [event for event in earlier if "learn" in event["data"]]
