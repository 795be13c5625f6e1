"""The answers to the letter: every event of a stream, and the body of what isn't streamed."""

import re
from typing import Any

import pytest

from tests.daemon.conftest import Running
from tests.daemon.scripted import Says

CHAT = "/v1/chat/completions"
LEGACY = "/v1/completions"
ASK: dict[str, Any] = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
RAW: dict[str, Any] = {"model": "tiny-chat", "prompt": "hello there", "temperature": 0}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
NO_LESSONS: dict[str, Any] = {"lessons": []}
PROMPT_TOKENS = 12
"""Of ASK, rendered."""


def normal(value: Any) -> Any:
    """The value with what differs from run to run replaced: turn ids, call ids, times, log probabilities."""
    match value:
        case dict():
            return {key: _fixed(key, entry) for key, entry in value.items()}
        case list():
            return [normal(entry) for entry in value]
        case str():
            return re.sub(r"^(turn-|call_)[0-9a-f]{32}$", r"\1id", value)
        case _:
            return value


def _fixed(key: str, value: Any) -> Any:
    if key == "created":
        return 0
    return "number" if key == "logprob" else normal(value)


def chunk(index: int, delta: Any, *, finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"data": FRAME | {"object": "chat.completion.chunk", "choices": [choice]}}


def raw_chunk(text: str, *, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"data": FRAME | {"object": "text_completion", "choices": [choice]}}


def with_learn(event: dict[str, Any]) -> dict[str, Any]:
    return {"data": event["data"] | {"learn": NO_LESSONS}}


FRAME = {"id": "turn-id", "created": 0, "model": "tiny-chat", "system_fingerprint": "base"}
DONE = {"data": "[DONE]"}
ROLE = {"role": "assistant", "content": ""}
CALLED = {"id": "call_id", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}


def usage(prompt: int, reply: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_chat_stream(running: Running, says: Says) -> None:
    says("hello there")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = normal(await running.events(CHAT, ASK | options))
    counted = FRAME | {"object": "chat.completion.chunk", "choices": []}
    assert events == [
        chunk(0, ROLE),
        chunk(0, {"content": "hell"}),
        chunk(0, {"content": "o"}),
        chunk(0, {"content": " there"}),
        chunk(0, {}, finish="stop"),
        with_learn({"data": counted | {"usage": usage(PROMPT_TOKENS, 4)}}),
        DONE,
    ]


async def test_a_chat_answer(running: Running, says: Says) -> None:
    says("hello there")
    status, body = await running.post(CHAT, ASK)
    message = {"role": "assistant", "content": "hello there"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    told = {
        "object": "chat.completion",
        "choices": [choice],
        "usage": usage(PROMPT_TOKENS, 4),
        "learn": NO_LESSONS,
    }
    assert (status, normal(body)) == (200, FRAME | told)


async def test_a_chat_stream_of_reasoning_and_calls(with_tools: Running, says: Says) -> None:
    says("hm\n</think>\nso\n" + '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>' * 2)
    asked = ASK | {"tools": [WEATHER], "stream": True, "chat_template_kwargs": {"thinking": True}}
    events = normal(await with_tools.events(CHAT, asked))
    assert events == [
        chunk(0, ROLE),
        chunk(0, {"reasoning_content": "h"}),
        chunk(0, {"reasoning_content": "m"}),
        chunk(0, {"content": "s"}),
        chunk(0, {"content": "o"}),
        chunk(0, {"tool_calls": [{"index": 0} | CALLED]}),
        chunk(0, {"tool_calls": [{"index": 1} | CALLED]}),
        with_learn(chunk(0, {}, finish="tool_calls")),
        DONE,
    ]


async def test_a_chat_answer_of_reasoning_and_calls(with_tools: Running, says: Says) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
    says(f"hm\n</think>\n{call}\n{call}")
    asked = ASK | {"tools": [WEATHER], "chat_template_kwargs": {"thinking": True}}
    _, body = await with_tools.post(CHAT, asked)
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALLED, CALLED]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    assert normal(body["choices"]) == [choice]


async def test_a_chat_stream_of_two_choices(running: Running, says: Says) -> None:
    says("how", "are you")
    events = normal(await running.events(CHAT, ASK | {"n": 2, "stream": True}))
    assert events[:2] == [chunk(0, ROLE), chunk(1, ROLE)]
    assert events[-3:] == [chunk(0, {}, finish="stop"), with_learn(chunk(1, {}, finish="stop")), DONE]
    texts = {0: "", 1: ""}
    for event in events[2:-3]:
        choice = event["data"]["choices"][0]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == {0: "how", 1: "are you"}


async def test_log_probabilities_come_with_the_text_of_their_tokens(running: Running, says: Says) -> None:
    says("the ü")
    events = normal(await running.events(CHAT, ASK | {"logprobs": True, "top_logprobs": 0, "stream": True}))

    def told(*tokens: tuple[str, list[int]]) -> Any:
        content = [
            {"token": text, "bytes": data, "logprob": "number", "top_logprobs": []} for text, data in tokens
        ]
        return {"content": content, "refusal": None}

    half = [("�", [0xC3]), ("�", [0xBC])]
    assert events[1:-2] == [
        chunk(0, {"content": "the"}, logprobs=told(("the", [*b"the"]))),
        chunk(0, {"content": " "}, logprobs=told((" ", [32]))),
        chunk(0, {"content": "ü"}, logprobs=told(*half)),
    ]


async def test_a_legacy_stream(running: Running, says: Says) -> None:
    says("hello there")
    events = normal(await running.events(LEGACY, RAW | {"stream": True}))
    assert events == [
        raw_chunk("hell"),
        raw_chunk("o"),
        raw_chunk(" there"),
        with_learn(raw_chunk("", finish="stop")),
        DONE,
    ]


async def test_a_legacy_answer_with_log_probabilities(running: Running, says: Says) -> None:
    says("the ü")
    _, body = await running.post(LEGACY, RAW | {"logprobs": 2})
    told = body["choices"][0].pop("logprobs")
    choice = {"index": 0, "text": "the ü", "finish_reason": "stop"}
    answer = {"object": "text_completion", "choices": [choice], "usage": usage(3, 5), "learn": NO_LESSONS}
    assert normal(body) == FRAME | answer
    assert told["tokens"] == ["the", " ", "bytes:\\xc3", "bytes:\\xbc"]
    assert told["text_offset"] == [0, 3, 4, 5]
    assert all(logprob < 0 for logprob in told["token_logprobs"])
    assert [len(top) for top in told["top_logprobs"]] == [2, 2, 2, 2]


@pytest.mark.parametrize("path", [CHAT, LEGACY])
async def test_a_stream_that_fails_ends_in_an_error_and_has_no_learn(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the lane's disk burns")

    monkeypatch.setattr("engine.live_turn.LiveTurn.draw", fail)
    events = await running.events(path, (ASK if path == CHAT else RAW) | {"stream": True})
    assert events[-1] == DONE
    assert "the lane's disk burns" in events[-2]["data"]["error"]["message"]
    assert not [event for event in events[:-1] if "learn" in event["data"]]
