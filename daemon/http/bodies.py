"""Requests' bodies: read within a time and a size, then as JSON, then checked.

- The body is read before its handler runs, and after it is known who asks: one who may not ask sends in vain.
- What is no JSON by the standard is refused: NaN, infinities, text that is not UTF-8, nesting past the stack.
- How many messages there are is known before any of them is looked at.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from daemon.http.error_answers import Handler
from daemon.http.errors import BadRequest, HttpError, bad_field

T = TypeVar("T")

MAX_MESSAGES = web.AppKey("max_messages", int)
READ_SECONDS = web.AppKey("read_seconds", float)

_LISTS = ("messages", "input", "tools")
"""Fields whose entries are rendered one by one, in whatever dialect."""


@web.middleware
async def read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the whole body, which handlers then find read.

    Raises:
        BadRequest: it does not keep to its own length or encoding.
        HttpError: it is too large (413), or does not come in time (408).
    """
    if request.match_info.http_exception is None:
        await _read(request)
    return await handler(request)


async def _read(request: web.Request) -> None:
    seconds, most = request.app[READ_SECONDS], request.client_max_size
    if (request.content_length or 0) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            await request.read()
    except TimeoutError as error:
        said = f"the body did not come within {seconds:g} seconds; send it at once, or raise --read-seconds"
        raise HttpError(408, said) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(most) from error
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body is broken off or not encoded as its head says: {error}") from error


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most} bytes; send less, or raise --max-body-mib")


async def read_json(request: web.Request) -> Any:
    """The request's body as JSON.

    Raises:
        BadRequest: it is not JSON in UTF-8, or has too many messages.
    """
    body = parse_json(await request.read())
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
