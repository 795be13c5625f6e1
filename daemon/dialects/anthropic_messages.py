"""Anthropic's messages: `POST /v1/messages`, answered whole or as its stream of named events."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from daemon.dialects.answer import Answer, Choice, Delta, Event, Opening
from daemon.dialects.anthropic_request import MessagesRequest
from daemon.dialects.asked import Asked
from daemon.dialects.dialect import EventWriter
from daemon.http.error_answers import error_body
from daemon.http.errors import ServiceError
from daemon.serving.turns import Limits
from daemon.text.reply_format import Content, Part, Reasoning, ToolCall

PATH = "/v1/messages"


class AnthropicMessages:
    """The dialect. `template` is the text of the lane's chat template."""

    path = PATH
    request = MessagesRequest
    closing = b""

    def __init__(self, template: str) -> None:
        self._template = template

    def asked(self, request: MessagesRequest) -> Asked:
        """What the request asks for."""
        return Asked(
            model=request.model,
            prompt=request.conversation(self._template),
            limits=Limits(request.max_tokens, request.stop_sequences, request.sampling()),
            metadata=request.metadata.of_speaker(),
            must_be=request.must_be(),
            learn=request.learn,
            stream=request.stream,
        )

    def body(self, _request: MessagesRequest, answer: Answer) -> Mapping[str, Any]:
        """The answer that isn't streamed."""
        (choice,) = answer.choices
        content = [_block(part) for part in choice.parts]
        return _message(answer.opening, content) | _ending(choice) | {"usage": _usage(answer)}

    def writer(self, _request: MessagesRequest, opening: Opening) -> EventWriter:
        """Writes the events of a stream."""
        return _Events(opening)


class _Events:
    """One stream's events: one block open at a time, each with its index."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._index = -1
        self._open: type[Part] | None = None

    def begin(self) -> Iterator[Event]:
        usage = {"input_tokens": self._opening.prompt_tokens, "output_tokens": 0}
        begun = {"stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=_message(self._opening, []) | begun)

    def delta(self, delta: Delta) -> Iterator[Event]:
        for part in delta.parts:
            yield from self._part(part)

    def end(self, answer: Answer) -> Iterator[Event]:
        yield from self._close()
        (choice,) = answer.choices
        yield Event(
            {"type": "message_delta", "delta": _ending(choice), "usage": _usage(answer)},
            "message_delta",
            tells_learn=True,
        )
        yield _event("message_stop")

    def error(self, error: ServiceError) -> Event:
        return Event(error_body(error, PATH), "error")

    def _part(self, part: Part) -> Iterator[Event]:
        if type(part) is not self._open or isinstance(part, ToolCall):
            yield from self._close()
            self._index, self._open = self._index + 1, type(part)
            yield _event("content_block_start", index=self._index, content_block=_begun(part))
        yield self._delta(_delta(part))

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open is Reasoning:
            yield self._delta({"type": "signature_delta", "signature": ""})
        self._open = None
        yield _event("content_block_stop", index=self._index)

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> Event:
    return Event({"type": kind, **fields}, kind)


def _message(opening: Opening, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": opening.id,
        "type": "message",
        "role": "assistant",
        "model": opening.model,
        "content": content,
    }


def _ending(choice: Choice) -> dict[str, Any]:
    return {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stopped_by}


def _stop_reason(choice: Choice) -> str:
    if choice.finish == "length":
        return "max_tokens"
    if choice.stopped_by is not None:
        return "stop_sequence"
    return "tool_use" if choice.finish == "tool_calls" else "end_turn"


def _usage(answer: Answer) -> dict[str, Any]:
    """What went in and came out. Anthropic counts what the cache held apart from the rest of the prompt."""
    return {
        "input_tokens": answer.opening.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.reply_tokens,
        "output_tokens_details": {"thinking_tokens": answer.choices[0].reasoning_tokens},
    }


def _block(part: Part) -> dict[str, Any]:
    """A part of the reply, whole."""
    match part:
        case Content(text):
            return _begun(part) | {"text": text}
        case Reasoning(text):
            return _begun(part) | {"thinking": text}
        case ToolCall():
            return _begun(part) | {"input": json.loads(part.arguments)}


def _begun(part: Part) -> dict[str, Any]:
    """The part's block before anything of it is told."""
    match part:
        case Content():
            return {"type": "text", "text": ""}
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}


def _delta(part: Part) -> dict[str, Any]:
    """What the part adds to its block."""
    match part:
        case Content(text):
            return {"type": "text_delta", "text": text}
        case Reasoning(text):
            return {"type": "thinking_delta", "thinking": text}
        case ToolCall():
            return {"type": "input_json_delta", "partial_json": part.arguments}
