"""Which routes are whose, and the one place where that is checked.

- Every route has its line in `ACCESS`; one that has none is the operators'.
- Where a key is needed, it is needed on paths that are not there too: whoever has none learns nothing.
- What an agent's key opens is still the agent's own only: handlers ask `caller_of` whose it is.
"""

from enum import StrEnum

from aiohttp import web

from daemon.http.error_answers import Handler
from daemon.http.errors import Forbidden, Unauthorized
from daemon.http.keys import OPERATOR, Caller, Keys


class Access(StrEnum):
    """Who may use a route."""

    EVERYONE = "everyone, without a key"
    AGENTS = "agents, for what is theirs, and operators"
    OPERATORS = "operators"


ACCESS: dict[tuple[str, str], Access] = {
    ("GET", "/"): Access.EVERYONE,
    ("GET", "/page/{name}"): Access.EVERYONE,
    ("POST", "/v1/chat/completions"): Access.AGENTS,
    ("POST", "/v1/completions"): Access.AGENTS,
    ("POST", "/v1/responses"): Access.AGENTS,
    ("POST", "/v1/messages"): Access.AGENTS,
    ("POST", "/v1/messages/count_tokens"): Access.AGENTS,
    ("POST", "/completion"): Access.AGENTS,
    ("POST", "/tokenize"): Access.AGENTS,
    ("POST", "/detokenize"): Access.AGENTS,
    ("POST", "/apply-template"): Access.AGENTS,
    ("GET", "/v1/models"): Access.AGENTS,
    ("GET", "/health"): Access.EVERYONE,
    ("GET", "/props"): Access.AGENTS,
    ("GET", "/slots"): Access.AGENTS,
    ("GET", "/openapi.json"): Access.AGENTS,
    ("GET", "/metrics"): Access.OPERATORS,
    ("POST", "/learn"): Access.AGENTS,
    ("POST", "/signals"): Access.AGENTS,
    ("GET", "/signals/{id}"): Access.AGENTS,
    ("GET", "/lessons"): Access.AGENTS,
    ("GET", "/lessons/{id}"): Access.AGENTS,
    ("GET", "/ledger"): Access.AGENTS,
    ("GET", "/ledger/summary"): Access.AGENTS,
    ("GET", "/ledger/stream"): Access.AGENTS,
    ("GET", "/ledger/verify"): Access.OPERATORS,
    ("GET", "/ledger/{seq}"): Access.AGENTS,
    ("GET", "/signals/{id}/explain"): Access.AGENTS,
    ("GET", "/policy"): Access.OPERATORS,
    ("PUT", "/policy/agents/{agent}"): Access.OPERATORS,
    ("DELETE", "/policy/agents/{agent}"): Access.OPERATORS,
    ("POST", "/forget"): Access.OPERATORS,
    ("GET", "/adapters"): Access.AGENTS,
    ("POST", "/adapters/{agent}/promote"): Access.OPERATORS,
    ("POST", "/adapters/{agent}/rollback"): Access.OPERATORS,
    ("POST", "/adapters/{agent}/export"): Access.OPERATORS,
    ("GET", "/lora-adapters"): Access.OPERATORS,
    ("POST", "/lora-adapters"): Access.OPERATORS,
    ("POST", "/lora-adapters/load"): Access.OPERATORS,
    ("POST", "/lora-adapters/unload"): Access.OPERATORS,
}
"""Whose each route is, by method and path."""

KEYS = web.AppKey("keys", Keys)
_CALLER = web.RequestKey("caller", Caller)


def caller_of(request: web.Request) -> Caller:
    """Who sent this request."""
    return request[_CALLER]


@web.middleware
async def authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request through to its handler if whoever sent it may use the route.

    Raises:
        Unauthorized: a key is needed, and there is none or it is nobody's.
        Forbidden: the key is an agent's and the route the operators'.
    """
    request[_CALLER] = _authorised(request, request.app[KEYS])
    return await handler(request)


def _authorised(request: web.Request, keys: Keys) -> Caller:
    access = access_of(request)
    if not keys or access is Access.EVERYONE:
        return OPERATOR
    caller = keys.caller_with(_key_of(request))
    if caller is None:
        raise Unauthorized(
            "this is not a key of this lane; give one that is, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
        )
    found = request.match_info.http_exception is None
    if found and access is Access.OPERATORS and not caller.is_operator:
        raise Forbidden(f"this key is {caller.agent!r}'s, and {request.path} is the operators'")
    return caller


def access_of(request: web.Request) -> Access:
    """Who may use the request's route."""
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    path = "" if resource is None else resource.canonical
    return ACCESS.get((method, path), Access.OPERATORS)


def _key_of(request: web.Request) -> str:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    given = credentials.strip() if scheme.lower() == "bearer" else request.headers.get("X-Api-Key", "")
    if not given:
        raise Unauthorized(
            "this lane asks for a key; give one as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
        )
    return given
