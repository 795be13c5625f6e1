"""Errors as answers: one body for each dialect, chosen by the path that was asked.

OpenAI's, and ours:  {"error": {"message", "type", "param", "code"}}
Anthropic's:         {"type": "error", "error": {"type", "message"}, "request_id"}
llama-server's:      {"error": {"code", "message", "type"}}
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from daemon.http.errors import HttpError, ServiceError, mapped

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Shape = Callable[[ServiceError], dict[str, Any]]

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _openai(error: ServiceError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def _anthropic(error: ServiceError) -> dict[str, Any]:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    told = {"type": _ANTHROPIC_TYPES.get(error.status, usual), "message": error.message}
    return {"type": "error", "error": told, "request_id": f"req_{uuid.uuid4().hex}"}


def _llama_server(error: ServiceError) -> dict[str, Any]:
    return {"error": {"code": error.status, "message": error.message, "type": error.kind}}


_SHAPES: tuple[tuple[str, Shape], ...] = (
    ("/v1/messages", _anthropic),
    ("/completion", _llama_server),
    ("/tokenize", _llama_server),
    ("/detokenize", _llama_server),
    ("/apply-template", _llama_server),
    ("/props", _llama_server),
    ("/slots", _llama_server),
    ("/lora-adapters", _llama_server),
)
"""Whose paths are whose; every other path answers in OpenAI's shape."""


def error_body(error: ServiceError, path: str) -> dict[str, Any]:
    """The error's JSON, as whoever asked on that path expects it."""
    fitting = (shape for start, shape in _SHAPES if path == start or path.startswith(f"{start}/"))
    return next(fitting, _openai)(error)


def _has_gone(request: web.Request) -> bool:
    """Has the client closed the connection? Then its handler ends as if that had been noticed first."""
    return request.transport is None or request.transport.is_closing()


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler, and of aiohttp itself, into the error body of the path's dialect."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except web.HTTPException as refused:
        if refused.status < 400:
            raise
        told: ServiceError = HttpError(refused.status, str(refused.reason))
        headers = {key: value for key, value in refused.headers.items() if key.lower() in {"allow", "retry-after"}}
    except Exception as error:  # the border: logged, and answered without the traceback
        if isinstance(error, ConnectionError) and _has_gone(request):
            raise asyncio.CancelledError from error
        told = mapped(error)
        headers = told.headers
    return web.json_response(error_body(told, request.path), status=told.status, headers=headers)
