"""One handler for every dialect: from the request to its turns, and from their tokens to the answer.

- The turn's id and its stable set are in the headers of every answer, streamed or not; of several choices, every
  turn's id, in their order.
- The `learn` object is put into every answer here, once: into the body, or into an event of the stream's end.
- The turns are recorded before the end of the answer is told. What fails before the answer begins is an HTTP
  error; after that, its last event.
- A client that goes away cancels the handler, and leaving it cancels the turns.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Generic

from aiohttp import web
from pydantic import ValidationError

from daemon.dialects.answer import Answer, Delta, Event, Opening, end_with_learn, told_of
from daemon.dialects.asked import Asked
from daemon.dialects.choice import ChoiceReader
from daemon.dialects.dialect import Dialect, EventWriter, R
from daemon.dialects.prompts import Prepared, Prompts
from daemon.http.bodies import read_json
from daemon.http.errors import BadRequest, NotFound, bad_field, mapped
from daemon.http.speaker import speaker_of
from daemon.learning.fates import learn_json
from daemon.serving.open_turn import OpenTurn
from daemon.serving.turns import Turns

Tell = Callable[[Delta], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Serving:
    """A request being served: a turn and a reader for each choice."""

    asked: Asked
    turns: Sequence[OpenTurn]
    readers: Sequence[ChoiceReader]
    opening: Opening


class DialectHandler(Generic[R]):
    """Serves one dialect's route."""

    def __init__(self, dialect: Dialect[R], turns: Turns, prompts: Prompts, *, model: str) -> None:
        self._dialect = dialect
        self._turns = turns
        self._prompts = prompts
        self._texts = prompts.chat.token_texts
        self._model = model

    @property
    def path(self) -> str:
        """The route, by POST."""
        return self._dialect.path

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a request."""
        try:
            body = self._dialect.request.model_validate(await read_json(request))
            asked = self._dialect.asked(body)
        except ValidationError as error:
            raise bad_field(error) from error
        self._check(asked)
        speaker = speaker_of(request, asked.metadata)
        self._turns.queue.check(asked.choices)
        prepared = await asyncio.to_thread(self._prompts.prepare, asked)
        async with AsyncExitStack() as stack:
            turns = [
                await stack.enter_async_context(self._turns.serve(speaker, prepared.prompt, limits, asked.learn))
                for limits in asked.limits_of_choices(prepared.constraint)
            ]
            readers = [self._reader(index, prepared) for index in range(asked.choices)]
            serving = _Serving(asked, turns, readers, self._opening(turns))
            if asked.stream:
                return await self._stream(request, serving, self._dialect.writer(body, serving.opening))
            return await self._answer(body, serving)

    def _reader(self, index: int, prepared: Prepared) -> ChoiceReader:
        ends = self._prompts.chat.end_of_turn_ids
        return ChoiceReader(index, prepared.parser(), self._texts, end_tokens=ends)

    def _check(self, asked: Asked) -> None:
        check_model(asked.model, served=self._model)
        if asked.learn.asks and asked.choices > 1:
            raise BadRequest(
                f"learn: a request for {asked.choices} replies cannot say which its lesson is about; ask for one",
                param="learn",
            )

    def _opening(self, turns: Sequence[OpenTurn]) -> Opening:
        first = turns[0]
        return Opening(
            turns=tuple(turn.id for turn in turns),
            created_at_us=first.created_at_us,
            model=self._model,
            adapter=first.stable.label,
            prompt_tokens=len(first.prompt.tokens),
        )

    async def _answer(self, body: R, serving: _Serving) -> web.Response:
        await _read(serving, _tell_nobody)
        answer, learn = await self._end(serving)
        told = told_of(self._dialect.body(body, answer), learn)
        return web.json_response(told, headers=_headers(serving.opening))

    async def _stream(self, request: web.Request, serving: _Serving, writer: EventWriter) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers(serving.opening) | {"Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        try:
            await self._send_all(response, serving, writer)
        except ConnectionError:
            raise
        except Exception as error:  # the answer has begun: its error is an event
            await _send(response, writer.error(mapped(error)))
        await response.write(self._dialect.closing)
        await response.write_eof()
        return response

    async def _send_all(self, response: web.StreamResponse, serving: _Serving, writer: EventWriter) -> None:
        async def tell(delta: Delta) -> None:
            for event in writer.delta(delta):
                await _send(response, event)

        for event in writer.begin():
            await _send(response, event)
        await _read(serving, tell)
        answer, learn = await self._end(serving)
        for event in end_with_learn(writer.end(answer), learn):
            await _send(response, event)

    async def _end(self, serving: _Serving) -> tuple[Answer, dict[str, Any]]:
        """Record the turns; the whole answer, and what became of the lessons that rode it."""
        wait = serving.asked.learn.wait_seconds
        lessons = [await self._turns.finish(turn, wait_seconds=wait) for turn in serving.turns]
        asks = serving.asked.limits.sampling.logprobs is not None
        choices = tuple(
            reader.choice(turn.ended, with_logprobs=asks)
            for reader, turn in zip(serving.readers, serving.turns, strict=True)
        )
        return Answer(serving.opening, choices), learn_json(lessons)


def check_model(named: str | None, *, served: str) -> None:
    """Refuse a request that names another model than the lane's.

    Raises:
        NotFound: it does.
    """
    if named not in {None, served}:
        raise NotFound(
            f"this lane serves {served!r}, not {named!r}; name it, as GET /v1/models does",
            param="model",
            code="model_not_found",
        )


async def _read(serving: _Serving, tell: Tell) -> None:
    """Read every choice to its end, all at once, and tell what comes."""

    async def read_one(turn: OpenTurn, reader: ChoiceReader) -> None:
        async for event in turn.events():
            delta = reader.take(event)
            if delta is not None:
                await tell(delta)

    try:
        async with asyncio.TaskGroup() as group:
            for turn, reader in zip(serving.turns, serving.readers, strict=True):
                group.create_task(read_one(turn, reader))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _tell_nobody(_delta: Delta) -> None:
    """An answer that isn't streamed is told at its end."""


def _headers(opening: Opening) -> dict[str, str]:
    return {"X-Ridealong-Turn": ",".join(opening.turns), "X-Ridealong-Adapter": opening.adapter}


async def _send(response: web.StreamResponse, event: Event) -> None:
    await response.write(_encoded(event.data, event.name))


def _encoded(data: Mapping[str, Any], name: str | None) -> bytes:
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
