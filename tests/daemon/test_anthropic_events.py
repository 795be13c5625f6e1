"""Anthropic's answers to the letter: every event of a stream, and the body of what isn't streamed."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import Running, Start
from tests.daemon.scripted import Says
from tests.daemon.tiny_chat import TOOLS_TEMPLATE, write_tiny_chat

PATH = "/v1/messages"
ASK: dict[str, Any] = {
    "model": "tiny-chat",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
}
WEATHER: dict[str, Any] = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
NO_LESSONS: dict[str, Any] = {"lessons": []}
PROMPT_TOKENS = 12
"""Of ASK, rendered without tools."""


@pytest.fixture(scope="session")
def tiny_thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a template that has thinking on or off as Qwen's do."""
    template = TOOLS_TEMPLATE.replace("if thinking", "if enable_thinking")
    assert template != TOOLS_TEMPLATE
    return write_tiny_chat(tmp_path_factory.mktemp("thinker") / "tiny-chat", template)


@pytest.fixture
async def thinker(start: Start, tiny_thinker: Path) -> AsyncIterator[Running]:
    async with start(model=str(tiny_thinker), ctx=512) as made:
        yield made


def normal(value: Any) -> Any:
    """The value with the ids of turns and calls replaced."""
    match value:
        case dict():
            return {key: normal(entry) for key, entry in value.items()}
        case list():
            return [normal(entry) for entry in value]
        case str():
            return re.sub(r"^(turn-|call_|req_)[0-9a-f]{32}$", r"\1id", value)
        case _:
            return value


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "data": {"type": kind, **fields}}


def started(prompt_tokens: int) -> dict[str, Any]:
    ending = {"stop_reason": None, "stop_sequence": None}
    return event(
        "message_start", message=FRAME | {"content": []} | ending | {"usage": usage_so_far(prompt_tokens)}
    )


def usage_so_far(prompt: int) -> dict[str, Any]:
    return {"input_tokens": prompt, "output_tokens": 0}


def usage(prompt: int, reply: int, *, thinking: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": reply,
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        event("content_block_start", index=index, content_block=begun),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
    return block(index, {"type": "text", "text": ""}, *deltas)


def thought(index: int, *pieces: str) -> list[dict[str, Any]]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = {"type": "signature_delta", "signature": ""}
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, signed)


def called(index: int) -> list[dict[str, Any]]:
    begun = {"type": "tool_use", "id": "call_id", "name": "weather", "input": {}}
    return block(index, begun, {"type": "input_json_delta", "partial_json": '{"a": 1}'})


def ended(reason: str, counted: dict[str, Any], *, stop: str | None = None) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": stop}
    return [event("message_delta", delta=delta, usage=counted, learn=NO_LESSONS), event("message_stop")]


FRAME = {"id": "turn-id", "type": "message", "role": "assistant", "model": "tiny-chat"}
CALLED = {"type": "tool_use", "id": "call_id", "name": "weather", "input": {"a": 1}}


async def test_a_stream(running: Running, says: Says) -> None:
    says("hello there")
    events = normal(await running.events(PATH, ASK | {"stream": True}))
    assert events == [
        started(PROMPT_TOKENS),
        *text(0, "hell", "o", " there"),
        *ended("end_turn", usage(PROMPT_TOKENS, 4)),
    ]


async def test_an_answer(running: Running, says: Says) -> None:
    says("hello there")
    status, body = await running.post(PATH, ASK)
    said = {"content": [{"type": "text", "text": "hello there"}], "stop_reason": "end_turn", "stop_sequence": None}
    told = FRAME | said | {"usage": usage(PROMPT_TOKENS, 4), "learn": NO_LESSONS}
    assert (status, normal(body)) == (200, told)


async def test_a_stream_of_thinking_text_and_calls(thinker: Running, says: Says) -> None:
    says(f"hm\n</think>\nso\n{CALL}\n{CALL}")
    events = normal(await thinker.events(PATH, ASK | THINKING | {"tools": [WEATHER], "stream": True}))
    counted = events[-2]["data"]["usage"]
    prompt, reply, thinking = counted["input_tokens"], counted["output_tokens"], 2
    assert events == [
        started(prompt),
        *thought(0, "h", "m"),
        *text(1, "s", "o"),
        *called(2),
        *called(3),
        *ended("tool_use", usage(prompt, reply, thinking=thinking)),
    ]


async def test_an_answer_of_thinking_and_calls(thinker: Running, says: Says) -> None:
    says(f"hm\n</think>\n{CALL}\n{CALL}")
    _, body = await thinker.post(PATH, ASK | THINKING | {"tools": [WEATHER]})
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    assert normal(body["content"]) == [thinking, CALLED, CALLED]
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize("stop", ["ar", " harb"])
async def test_the_stop_sequence_that_ended_a_reply_is_told(running: Running, says: Says, stop: str) -> None:
    says("the harbour", "the harbour")
    ask = ASK | {"stop_sequences": ["x", stop]}
    _, body = await running.post(PATH, ask)
    events = await running.events(PATH, ask | {"stream": True})
    assert body["content"] == [{"type": "text", "text": "the harbour".split(stop, maxsplit=1)[0]}]
    told = {"stop_reason": "stop_sequence", "stop_sequence": stop}
    assert {key: body[key] for key in told} == told
    assert events[-2]["data"]["delta"] == told


async def test_a_reply_that_is_cut_off_says_so(running: Running, says: Says) -> None:
    says("hello there")
    _, body = await running.post(PATH, ASK | {"max_tokens": 2})
    assert (body["stop_reason"], body["stop_sequence"]) == ("max_tokens", None)
    assert body["content"] == [{"type": "text", "text": "hello"}]
    assert body["usage"]["output_tokens"] == 2


async def test_a_reply_of_nothing_has_no_content(running: Running, says: Says) -> None:
    says("", "")
    _, body = await running.post(PATH, ASK)
    events = await running.events(PATH, ASK | {"stream": True})
    assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    assert [told["event"] for told in events] == ["message_start", "message_delta", "message_stop"]


async def test_what_the_slot_held_is_counted_apart(running: Running, says: Says) -> None:
    says("hello there")
    _, first = await running.post(PATH, ASK)
    reply = {"role": "assistant", "content": first["content"]}
    going_on = {"messages": [*ASK["messages"], reply, {"role": "user", "content": "and then?"}]}
    _, count = await running.post(f"{PATH}/count_tokens", {"model": "tiny-chat"} | going_on)
    _, second = await running.post(PATH, ASK | going_on | {"max_tokens": 2})
    told = second["usage"]
    assert first["usage"]["input_tokens"] == PROMPT_TOKENS
    assert told["cache_read_input_tokens"] > PROMPT_TOKENS
    assert told["input_tokens"] + told["cache_read_input_tokens"] == count["input_tokens"]


async def test_a_stream_that_fails_ends_in_an_error_and_has_no_learn(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the lane's disk burns")

    monkeypatch.setattr("engine.live_turn.LiveTurn.draw", fail)
    *events, last = normal(await running.events(PATH, ASK | {"stream": True}))
    message = last["data"]["error"].pop("message")
    assert "the lane's disk burns" in message
    assert last == event("error", error={"type": "overloaded_error"}, request_id="req_id")
    assert events == [started(PROMPT_TOKENS)]
