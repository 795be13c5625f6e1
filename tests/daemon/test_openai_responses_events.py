"""OpenAI's responses to the letter: every event of a stream, and the body of what isn't streamed."""

import re
from itertools import count
from typing import Any

import pytest

from daemon.dialects.answer import Delta
from daemon.dialects.openai_responses_output import Output
from daemon.text.reply_format import Content, Reasoning
from daemon.text.token_text import Logprob
from tests.daemon.conftest import Running
from tests.daemon.scripted import Says

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "tiny-chat", "input": "hello", "temperature": 0}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather"}
CALL = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
NO_LESSONS: dict[str, Any] = {"lessons": []}
PROMPT_TOKENS = 12
"""Of ASK, rendered without tools."""


def normal(value: Any) -> Any:
    """The value with ids, times and log probabilities replaced."""
    match value:
        case dict():
            return {key: _fixed(key, entry) for key, entry in value.items()}
        case list():
            return [normal(entry) for entry in value]
        case str():
            return re.sub(r"^(turn-|call_|msg_|rs_|fc_)[0-9a-f]{32}", r"\1id", value)
        case _:
            return value


def _fixed(key: str, value: Any) -> Any:
    if key == "created_at":
        return 0
    return "number" if key == "logprob" else normal(value)


FRAME: dict[str, Any] = {
    "id": "turn-id",
    "object": "response",
    "created_at": 0,
    "status": "in_progress",
    "error": None,
    "incomplete_details": None,
    "model": "tiny-chat",
    "output": [],
    "usage": None,
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": False,
    "temperature": 0.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def usage(prompt: int, reply: int, *, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": prompt},
        "output_tokens": reply,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + reply,
    }


def message(index: int, text: str, *, status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"msg_id_{index}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part(text)],
    }


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def thought(index: int, text: str, *, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_id_{index}", "type": "reasoning", "summary": [], "status": status, "content": content}


def call(index: int, *, arguments: str = '{"a": 1}', status: str = "completed") -> dict[str, Any]:
    told = {"id": f"fc_id_{index}", "type": "function_call", "status": status, "call_id": "call_id"}
    return told | {"name": "weather", "arguments": arguments}


def item(kind: str, index: int, told: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": told}


def said(index: int, *pieces: str, status: str = "completed") -> list[dict[str, Any]]:
    text, at = "".join(pieces), {"item_id": f"msg_id_{index}", "output_index": index, "content_index": 0}
    deltas = ({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in pieces)
    return [
        item("added", index, message(index, "", status="in_progress") | {"content": []}),
        {"type": "response.content_part.added", **at, "part": part("")},
        *deltas,
        {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part(text)},
        item("done", index, message(index, text, status=status)),
    ]


def thinking(index: int, *pieces: str) -> list[dict[str, Any]]:
    text, at = "".join(pieces), {"item_id": f"rs_id_{index}", "output_index": index, "content_index": 0}
    return [
        item("added", index, thought(index, "", status="in_progress") | {"content": []}),
        {"type": "response.content_part.added", **at, "part": {"type": "reasoning_text", "text": ""}},
        *({"type": "response.reasoning_text.delta", **at, "delta": piece} for piece in pieces),
        {"type": "response.reasoning_text.done", **at, "text": text},
        {"type": "response.content_part.done", **at, "part": {"type": "reasoning_text", "text": text}},
        item("done", index, thought(index, text)),
    ]


def calling(index: int) -> list[dict[str, Any]]:
    at = {"item_id": f"fc_id_{index}", "output_index": index}
    return [
        item("added", index, call(index, arguments="", status="in_progress")),
        {"type": "response.function_call_arguments.delta", **at, "delta": '{"a": 1}'},
        {"type": "response.function_call_arguments.done", **at, "arguments": '{"a": 1}'},
        item("done", index, call(index)),
    ]


def stream(frame: dict[str, Any], events: list[dict[str, Any]], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that is sent: the events between the first two and the last, numbered and named."""
    last = {"type": f"response.{end['status']}", "response": frame | end}
    begun = [{"type": kind, "response": frame} for kind in ("response.created", "response.in_progress")]
    numbers = count()
    return [
        {"event": told["type"], "data": told | {"sequence_number": next(numbers)}}
        for told in [*begun, *events, last]
    ]


async def test_a_stream(running: Running, says: Says) -> None:
    says("hello there")
    events = normal(await running.events(PATH, ASK | {"stream": True}))
    end = {"status": "completed", "output": [message(0, "hello there")], "usage": usage(PROMPT_TOKENS, 4)}
    assert events == stream(FRAME, said(0, "hell", "o", " there"), end | {"learn": NO_LESSONS})


async def test_an_answer(running: Running, says: Says) -> None:
    says("hello there")
    status, body = await running.post(PATH, ASK)
    end = {"status": "completed", "output": [message(0, "hello there")], "usage": usage(PROMPT_TOKENS, 4)}
    assert (status, normal(body)) == (200, FRAME | end | {"learn": NO_LESSONS})


@pytest.fixture
def thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every prompt of the tools' template open reasoning, which responses have no parameter for."""
    monkeypatch.setattr(
        "daemon.dialects.openai_responses_request.ReasoningConfig.template_args", lambda *_: {"thinking": True}
    )


async def test_a_stream_of_reasoning_text_and_calls(with_tools: Running, says: Says, thinks: None) -> None:
    says(f"hm\n</think>\nso\n{CALL}\n{CALL}")
    events = normal(await with_tools.events(PATH, ASK | {"tools": [WEATHER], "stream": True}))
    tool = WEATHER | {"description": None, "parameters": None, "strict": False}
    told = events[-1]["data"]["response"]["usage"]
    output = [thought(0, "hm"), message(1, "so"), call(2), call(3)]
    end = {
        "status": "completed",
        "output": output,
        "usage": usage(told["input_tokens"], told["output_tokens"], reasoning=2),
        "learn": NO_LESSONS,
    }
    between = [*thinking(0, "h", "m"), *said(1, "s", "o"), *calling(2), *calling(3)]
    assert events == stream(FRAME | {"tools": [tool]}, between, end)


async def test_an_answer_of_reasoning_and_calls(with_tools: Running, says: Says, thinks: None) -> None:
    says(f"hm\n</think>\n{CALL}\n{CALL}")
    _, body = await with_tools.post(PATH, ASK | {"tools": [WEATHER]})
    assert normal(body["output"]) == [thought(0, "hm"), call(1), call(2)]
    assert body["status"] == "completed"
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_a_stream_that_is_cut_off_is_incomplete(running: Running, says: Says) -> None:
    says("hello there")
    events = normal(await running.events(PATH, ASK | {"max_output_tokens": 2, "stream": True}))
    end = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [message(0, "hello", status="incomplete")],
        "usage": usage(PROMPT_TOKENS, 2),
        "learn": NO_LESSONS,
    }
    assert events == stream(FRAME | {"max_output_tokens": 2}, said(0, "hell", "o", status="incomplete"), end)


async def test_an_answer_that_is_cut_off_is_incomplete(running: Running, says: Says) -> None:
    says("hello there")
    _, body = await running.post(PATH, ASK | {"max_output_tokens": 2})
    told = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert {key: body[key] for key in told} == told
    assert normal(body["output"]) == [message(0, "hello", status="incomplete")]


async def test_a_reply_of_nothing_has_no_output(running: Running, says: Says) -> None:
    says("", "")
    _, body = await running.post(PATH, ASK)
    events = await running.events(PATH, ASK | {"stream": True})
    assert (body["output"], body["status"]) == ([], "completed")
    kinds = ["response.created", "response.in_progress", "response.completed"]
    assert [told["event"] for told in events] == kinds


async def test_log_probabilities_are_those_of_the_text(with_tools: Running, says: Says, thinks: None) -> None:
    reply = f"hm\n</think>\n\nso ü\n{CALL}"
    says(reply, reply)
    ask = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [WEATHER]}
    _, body = await with_tools.post(PATH, ask)
    events = await with_tools.events(PATH, ask | {"stream": True})
    (told,) = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    tokens = ["s", "o", " ", "�", "�"]
    assert (told["text"], [token["token"] for token in told["logprobs"]]) == ("so ü", tokens)
    assert [len(token["top_logprobs"]) for token in told["logprobs"]] == [2] * 5
    assert told["logprobs"][3]["bytes"] == [0xC3]
    done = [event["data"] for event in events if event["event"] == "response.output_text.done"]
    deltas = [event["data"] for event in events if event["event"] == "response.output_text.delta"]
    assert normal([token for delta in deltas for token in delta["logprobs"]]) == normal(told["logprobs"])
    assert normal(done[0]["logprobs"]) == normal(told["logprobs"])


def test_the_tokens_of_a_tag_before_the_text_are_not_the_texts() -> None:
    tokens = tuple(Logprob(0, text, text.encode(), -1.0) for text in ("</think>", "\n", "üü"))
    deltas = [Delta(0, (Reasoning("hm"),)), Delta(0, (Content("üü"),), tokens)]
    _, said = Output.whole("turn-1", deltas, "stop").items
    assert [token["token"] for token in said["content"][0]["logprobs"]] == ["üü"]


async def test_a_stream_that_fails_ends_so_and_has_no_learn(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the lane's disk burns")

    monkeypatch.setattr("engine.live_turn.LiveTurn.draw", fail)
    events = normal(await running.events(PATH, ASK | {"stream": True}))
    message = events[-1]["data"]["response"]["error"].pop("message")
    assert "the lane's disk burns" in message
    assert events == stream(FRAME, [], {"status": "failed", "error": {"code": "server_error"}})
