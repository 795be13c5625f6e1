"""The `learn` object of a request: one model for every dialect, and what is not carried out is refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from daemon.dialects.learn import Label, LearnOptions
from tests.daemon.conftest import Running

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/completions", {"prompt": "hello"}),
]


def test_everything_that_may_be_said_is_read() -> None:
    labels = [{"message": 0}, {"message": 1, "start": 2, "end": 5, "weight": 0.5}]
    options = LearnOptions.model_validate({"wait": 5, "reply": "so", "lr": 0.1, "labels": labels})
    assert options.labels == (Label(message=0), Label(message=1, start=2, end=5, weight=0.5))
    assert (options.wait, options.reply, options.lr) == (5, "so", 0.1)
    assert options.asks_for_a_lesson() == "reply"
    assert LearnOptions().asks_for_a_lesson() is None


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"reply": ""}, "reply"),
        ({"reply": "\ud800"}, "reply"),
        ({"lr": 0}, "lr"),
        ({"lr": float("inf")}, "lr"),
        ({"wait": 601}, "wait"),
        ({"labels": []}, "labels"),
        ({"labels": [{"message": -1}]}, "labels"),
        ({"labels": [{"message": 0, "start": 1}]}, "labels"),
        ({"labels": [{"message": 0, "start": 2, "end": 2}]}, "labels"),
        ({"labels": [{"message": 0, "weight": -1}]}, "labels"),
        ({"labels": [{"message": 0, "weight": float("nan")}]}, "labels"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"soon": True}, "soon"),
    ],
)
def test_what_is_ill_formed_is_refused(said: dict[str, Any], param: str) -> None:
    with pytest.raises(ValidationError) as refused:
        LearnOptions.model_validate(said)
    assert refused.value.errors()[0]["loc"][0] == param


@pytest.mark.parametrize(("path", "body"), REQUESTS)
@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"reply": "so"}, "learn.reply"),
        ({"reply": ""}, "learn.reply"),
        ({"lr": 0.1}, "learn.lr"),
        ({"labels": [{"message": 0}]}, "learn.labels"),
        ({"messages": [{"role": "user", "content": "x"}]}, "learn.messages"),
        ({"soon": True}, "learn.soon"),
    ],
)
async def test_a_lesson_inside_a_request_is_refused_by_name(
    running: Running, path: str, body: dict[str, Any], said: dict[str, Any], param: str
) -> None:
    status, told = await running.post(path, {"model": "tiny-chat", "learn": said} | body)
    assert (status, told["error"]["param"]) == (400, param)


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
