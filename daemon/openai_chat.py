"""OpenAI chat completions: the request as it is parsed, and the answers, streamed and not.

- A parameter that is not supported is refused by name, never ignored.
- The `learn` object is in the final answer or the last chunk: the lessons that rode this turn, and how they fared.
- The turn's id and its stable set are in the headers of every answer, streamed or not.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from daemon.chat_template import HuggingFaceChat
from daemon.errors import BadRequest, NotFound, bad_field, error_body, mapped, read_json
from daemon.speaker import Metadata, speaker_of
from daemon.turns import Limits, OpenTurn, Prompt, Turns
from engine.sampling import Sampling
from signals.records import Message
from signals.tokens import RenderError

MAX_LEARN_WAIT_SECONDS = 600.0
"""Longer than any lesson takes; a client that waits longer has been forgotten."""

_FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", "failed": "stop"}


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Request):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class ChatMessage(_Request):
    """A message of the conversation. Text only: this lane sees no images and hears no sound."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None
    tool_call_id: str | None = None

    def for_template(self) -> Message:
        """The message as the chat template reads it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return Message(role=role, content=text, name=self.name, tool_call_id=self.tool_call_id)


class StreamOptions(_Request):
    """What a stream carries beside the reply."""

    include_usage: bool = False


class LearnOptions(_Request):
    """What the client wants of learning in this request."""

    wait: Annotated[float, Field(ge=0, le=MAX_LEARN_WAIT_SECONDS)] = 0.0
    """Seconds that the end of the answer may wait for lessons that rode it and still walk."""


class ChatRequest(_Request):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    learn: LearnOptions = LearnOptions()

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream: true; leave it out otherwise")
        return self

    def limits(self) -> Limits:
        """How the reply is drawn and ends."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if "" in stop:
            raise BadRequest("stop: an empty string would stop every reply; leave it out", param="stop")
        sampling = Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.seed)
        return Limits(self.max_completion_tokens or self.max_tokens, stop, sampling)


class ChatCompletions:
    """The route's handler."""

    def __init__(self, turns: Turns, chat: HuggingFaceChat, *, model: str) -> None:
        self._turns = turns
        self._chat = chat
        self._model = model

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve `POST /v1/chat/completions`."""
        try:
            asked = ChatRequest.model_validate(await read_json(request))
        except ValidationError as error:
            raise bad_field(error) from error
        if asked.model != self._model:
            raise NotFound(
                f"this lane serves {self._model!r}, not {asked.model!r}; name it, as GET /v1/models does",
                param="model",
                code="model_not_found",
            )
        speaker = speaker_of(request, asked.metadata)
        prompt = await asyncio.to_thread(self._prompt, asked)
        async with self._turns.serve(speaker, prompt, asked.limits()) as turn:
            if asked.stream:
                return await self._stream(request, asked, turn)
            return await self._answer(asked, turn)

    def _prompt(self, asked: ChatRequest) -> Prompt:
        try:
            messages = [message.for_template().for_template() for message in asked.messages]
            text = self._chat.render(messages, add_generation_prompt=True, template_args={})
            tokens = self._chat.encode(text).ids
        except ValidationError as error:
            raise BadRequest(f"messages: {bad_field(error).message}", param="messages") from error
        except RenderError as error:
            raise BadRequest(str(error), param="messages") from error
        return Prompt(tokens=tokens, messages=messages, template_args={})  # type: ignore[arg-type]

    async def _answer(self, asked: ChatRequest, turn: OpenTurn) -> web.Response:
        async for _ in turn.pieces():
            pass
        lessons = await self._turns.finish(turn, wait_seconds=asked.learn.wait)
        message = {"role": "assistant", "content": turn.ended.reply}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[turn.ended.reason]}
        body = self._frame(turn, "chat.completion") | {
            "choices": [choice],
            "usage": _usage(turn),
            "learn": {"lessons": lessons},
        }
        return web.json_response(body, headers=_headers(turn))

    async def _stream(self, request: web.Request, asked: ChatRequest, turn: OpenTurn) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers(turn) | {"Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        frame = self._frame(turn, "chat.completion.chunk")
        await _send(response, frame | _delta({"role": "assistant", "content": ""}))
        try:
            async for piece in turn.pieces():
                await _send(response, frame | _delta({"content": piece}))
            last = await self._last_chunks(asked, turn)
        except ConnectionError:
            raise
        except Exception as error:  # the answer has begun: its error is an event
            last = [error_body(mapped(error))]
        for chunk in last:
            await _send(response, frame | chunk)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _last_chunks(self, asked: ChatRequest, turn: OpenTurn) -> list[dict[str, Any]]:
        lessons = await self._turns.finish(turn, wait_seconds=asked.learn.wait)
        chunks: list[dict[str, Any]] = [_delta({}, _FINISH[turn.ended.reason])]
        if asked.stream_options and asked.stream_options.include_usage:
            chunks.append({"choices": [], "usage": _usage(turn)})
        chunks[-1]["learn"] = {"lessons": lessons}
        return chunks

    def _frame(self, turn: OpenTurn, kind: str) -> dict[str, Any]:
        return {
            "id": turn.id,
            "object": kind,
            "created": turn.created_at_us // 1_000_000,
            "model": self._model,
            "system_fingerprint": turn.stable.label,
        }

    def models(self) -> dict[str, Any]:
        """The body of `GET /v1/models`."""
        entry = {"id": self._model, "object": "model", "created": int(time.time()), "owned_by": "ridealong"}
        return {"object": "list", "data": [entry]}


def _delta(delta: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


def _usage(turn: OpenTurn) -> dict[str, Any]:
    prompt, reply = len(turn.prompt.tokens), len(turn.ended.reply_tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": turn.ended.cached_tokens},
    }


def _headers(turn: OpenTurn) -> dict[str, str]:
    return {"X-Ridealong-Turn": turn.id, "X-Ridealong-Adapter": turn.stable.label}


async def _send(response: web.StreamResponse, event: Mapping[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
