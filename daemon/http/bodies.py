"""Requests' bodies: read within a time and a size, then as JSON, then checked.

- The body is read before its handler runs, and after it is known who asks: one who may not ask sends in vain.
- What is no JSON by the standard is refused: NaN, infinities, text that is not UTF-8, nesting past the stack.
- All bodies that are held at once have a most.
- How many messages there are is known before any of them is looked at.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from daemon.http.error_answers import Handler
from daemon.http.errors import BadRequest, HttpError, Unavailable, bad_field
from daemon.http.limits import RETRY_SECONDS

T = TypeVar("T")

MAX_MESSAGES = web.AppKey("max_messages", int)
READ_SECONDS = web.AppKey("read_seconds", float)

_LISTS = ("messages", "input", "tools")
"""Fields whose entries are rendered one by one, in whatever dialect."""


class BodyRoom:
    """Room for the bodies of all requests that are open; bytes count once they have come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    @contextmanager
    def place(self) -> Iterator["Place"]:
        """Room for one body, for as long as the block runs."""
        place = Place(self)
        try:
            yield place
        finally:
            self.taken -= place.size

    def take(self, size: int) -> None:
        """Take room for so many bytes more.

        Raises:
            Unavailable: there is none now.
        """
        if self.taken + size > self._most:
            raise Unavailable(
                f"this lane holds {self._most} bytes of bodies at once, and has {self.taken}; "
                "ask again when some have been answered, or raise --max-bodies-mib",
                retry_after_seconds=RETRY_SECONDS,
            )
        self.taken += size


@dataclass(slots=True)
class Place:
    """One body's room."""

    room: BodyRoom
    size: int = 0

    def grow(self, size: int) -> None:
        """The body has so many bytes more. Raises as `BodyRoom.take` does."""
        self.room.take(size)
        self.size += size


BODY_ROOM = web.AppKey("body_room", BodyRoom)
_BODY = web.RequestKey("body", bytes)


@web.middleware
async def read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the whole body, which `body_of` then gives.

    Raises:
        BadRequest: it does not keep to its own length or encoding.
        HttpError: it is too large (413), or does not come in time (408).
        Unavailable: there is no room for it beside the others that are held.
    """
    if request.match_info.http_exception is not None:
        return await handler(request)
    with request.app[BODY_ROOM].place() as place:
        request[_BODY] = await _read(request, place)
        return await handler(request)


def body_of(request: web.Request) -> bytes:
    """The request's body, which was read before its handler was asked."""
    return request[_BODY]


async def _read(request: web.Request, place: Place) -> bytes:
    seconds, most = request.app[READ_SECONDS], request.client_max_size
    if (request.content_length or 0) > most:
        raise _too_large(most)
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                place.grow(len(piece))
                if place.size > most:
                    raise _too_large(most)
                pieces.append(piece)
    except TimeoutError as error:
        said = f"the body did not come within {seconds:g} seconds; send it at once, or raise --read-seconds"
        raise HttpError(408, said) from error
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body is broken off or not encoded as its head says: {error}") from error
    return b"".join(pieces)


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most} bytes; send less, or raise --max-body-mib")


async def read_json(request: web.Request) -> Any:
    """The request's body as JSON.

    Raises:
        BadRequest: it is not JSON in UTF-8, or has too many messages.
    """
    body = parse_json(body_of(request))
    _check_lists(body, most=request.app[MAX_MESSAGES])
    return body


async def read_as(request: web.Request, body: TypeAdapter[T]) -> T:
    """The request's body, checked.

    Raises:
        BadRequest: it is not JSON, or not what is asked for; the first field that is wrong is named.
    """
    try:
        return body.validate_python(await read_json(request))
    except ValidationError as error:
        raise bad_field(error) from error


def parse_json(data: bytes) -> Any:
    """JSON in UTF-8.

    Raises:
        BadRequest: it is none.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}; send a JSON object in UTF-8") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_lists(body: object, *, most: int) -> None:
    for name, length in _lists(body):
        if length > most:
            raise BadRequest(
                f"{name} has {length} entries, this lane takes {most}; send fewer, or raise --max-messages",
                param=name,
            )


def _lists(body: object) -> Iterator[tuple[str, int]]:
    """The lists of a body that have a most, each by its name, with its length."""
    if not isinstance(body, dict):
        return
    learn = body.get("learn")
    for path, part in (("", body), ("learn.", learn if isinstance(learn, dict) else {})):
        yield from ((path + name, len(part[name])) for name in _LISTS if isinstance(part.get(name), list))
