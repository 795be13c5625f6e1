"""OpenAI's responses: `POST /v1/responses`, answered whole or as its stream of numbered events.

Nothing is kept to be fetched or gone on from later: every request brings its whole conversation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from daemon.dialects.answer import Answer, Choice, Delta, Event, Opening
from daemon.dialects.asked import Asked
from daemon.dialects.dialect import EventWriter
from daemon.dialects.openai_responses_output import Output
from daemon.dialects.openai_responses_request import ResponsesRequest
from daemon.http.errors import ServiceError
from daemon.serving.turns import Limits

PATH = "/v1/responses"


class OpenAIResponses:
    """The dialect. `template` is the text of the lane's chat template."""

    path = PATH
    request = ResponsesRequest
    closing = b""

    def __init__(self, template: str) -> None:
        self._template = template

    def asked(self, request: ResponsesRequest) -> Asked:
        """What the request asks for."""
        return Asked(
            model=request.model,
            prompt=request.prompt(self._template),
            limits=Limits(request.max_output_tokens, (), request.sampling()),
            metadata=request.metadata,
            must_be=request.must_be(),
            learn=request.learn,
            stream=request.stream,
        )

    def body(self, request: ResponsesRequest, answer: Answer) -> Mapping[str, Any]:
        """The answer that isn't streamed."""
        (choice,) = answer.choices
        output = Output.whole(answer.opening.id, choice.deltas, choice.finish)
        return _response(request, answer.opening, output) | _ending(choice, answer)

    def writer(self, request: ResponsesRequest, opening: Opening) -> EventWriter:
        """Writes the events of a stream."""
        return _Events(request, opening)


class _Events:
    """One stream's events, numbered."""

    def __init__(self, request: ResponsesRequest, opening: Opening) -> None:
        self._request = request
        self._opening = opening
        self._output = Output(opening.id)
        self._told = 0

    def begin(self) -> Iterator[Event]:
        yield self._lifecycle("response.created", {})
        yield self._lifecycle("response.in_progress", {})

    def delta(self, delta: Delta) -> Iterator[Event]:
        for told in self._output.take(delta):
            yield self._event(told)

    def end(self, answer: Answer) -> Iterator[Event]:
        (choice,) = answer.choices
        for told in self._output.end(choice.finish):
            yield self._event(told)
        yield self._lifecycle(f"response.{_status(choice)}", _ending(choice, answer))

    def error(self, error: ServiceError) -> Event:
        failed = {"code": "server_error", "message": error.message}
        return self._lifecycle("response.failed", {"status": "failed", "error": failed})

    def _lifecycle(self, kind: str, changed: dict[str, Any]) -> Event:
        response = _response(self._request, self._opening, self._output) | changed
        return self._event({"type": kind, "response": response}, answer_key="response")

    def _event(self, told: Mapping[str, Any], *, answer_key: str | None = None) -> Event:
        number, self._told = self._told, self._told + 1
        return Event({**told, "sequence_number": number}, told["type"], answer_key)


def _response(request: ResponsesRequest, opening: Opening, output: Output) -> dict[str, Any]:
    """The response as it stands, in progress."""
    return {
        "id": opening.id,
        "object": "response",
        "created_at": opening.created_at_seconds,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": opening.model,
        "output": list(output.items),
        "usage": None,
        **request.as_told(),
    }


def _ending(choice: Choice, answer: Answer) -> dict[str, Any]:
    """What a response's end changes in it."""
    cut_off = {"reason": "max_output_tokens"} if choice.finish == "length" else None
    return {"status": _status(choice), "incomplete_details": cut_off, "usage": _usage(choice, answer)}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish == "length" else "completed"


def _usage(choice: Choice, answer: Answer) -> dict[str, Any]:
    """What went in and came out. All of the prompt that the cache didn't hold is in it afterwards."""
    prompt, reply, cached = answer.opening.prompt_tokens, answer.reply_tokens, answer.cached_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        "output_tokens": reply,
        "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
        "total_tokens": prompt + reply,
    }
