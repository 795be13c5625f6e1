"""The OpenAPI document, served at `/openapi.json`: made from the very models that parse the requests.

- Every route of the application is in it, with whose it is; a body's schema is its model's own.
- What a dialect's answer looks like is its vendor's to document; here it says which kinds of content it comes in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from daemon import __version__
from daemon.dialects.anthropic_request import CountRequest, MessagesRequest
from daemon.dialects.llama_request import LlamaRequest
from daemon.dialects.llama_text import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from daemon.dialects.openai_chat import ChatRequest
from daemon.dialects.openai_completions import CompletionRequest
from daemon.dialects.openai_responses_request import ResponsesRequest
from daemon.http.access import ACCESS, Access
from daemon.http.forget_route import ForgetRequest
from daemon.http.learn_route import LearnRequest
from daemon.http.ledger_json import PAGE, ROWS
from daemon.http.lesson_routes import LISTED_BY
from daemon.http.lora_routes import LoadRequest, ScaleRequest, UnloadRequest
from daemon.http.routes import ExportRequest, RollbackRequest
from daemon.http.speaker import HEADER, Metadata
from daemon.http.summary_route import ASKED_BY
from signals.policy import PolicyTable
from signals.records import Signal
from store.words import LedgerKind

JSON, STREAM, NDJSON, TEXT = "application/json", "text/event-stream", "application/x-ndjson", "text/plain"
HTML, CSS, SCRIPT, ICON = "text/html", "text/css", "text/javascript", "image/svg+xml"
_SCHEMAS = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a route does; its body, if it has one; its query parameters; the kinds of content it answers in."""

    summary: str
    body: Any = None
    query: tuple[str, ...] = ()
    answers: tuple[str, ...] = (JSON,)
    speaks: bool = False
    """Does it say who is speaking, in headers?"""


def _completion(summary: str, body: Any) -> Operation:
    return Operation(summary, body, answers=(JSON, STREAM), speaks=True)


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/"): Operation("The operator page", answers=(HTML,)),
    ("GET", "/page/{name}"): Operation("A file of it", answers=(CSS, SCRIPT, ICON, JSON, TEXT)),
    ("POST", "/v1/chat/completions"): _completion("OpenAI chat completions", ChatRequest),
    ("POST", "/v1/completions"): _completion("OpenAI completions", CompletionRequest),
    ("POST", "/v1/responses"): _completion("OpenAI responses", ResponsesRequest),
    ("POST", "/v1/messages"): _completion("Anthropic messages", MessagesRequest),
    ("POST", "/v1/messages/count_tokens"): Operation("Count a prompt's tokens", CountRequest),
    ("POST", "/completion"): _completion("llama-server's completion", LlamaRequest),
    ("POST", "/tokenize"): Operation("A text as tokens", TokenizeRequest),
    ("POST", "/detokenize"): Operation("Tokens as text", DetokenizeRequest),
    ("POST", "/apply-template"): Operation("A conversation as a prompt", ApplyTemplateRequest),
    ("GET", "/v1/models"): Operation("The model that is served"),
    ("GET", "/health"): Operation("Is the lane serving?"),
    ("GET", "/props"): Operation("What the lane was started with"),
    ("GET", "/slots"): Operation("What each slot holds"),
    ("GET", "/metrics"): Operation("Metrics for Prometheus", answers=(TEXT,)),
    ("GET", "/openapi.json"): Operation("This document"),
    ("POST", "/learn"): Operation("Learn what a reply should have been", LearnRequest, speaks=True),
    ("POST", "/signals"): Operation(
        "One signal, or a list of them", Signal | list[Signal], query=("each",), speaks=True
    ),
    ("GET", "/signals/{id}"): Operation("What became of a signal"),
    ("GET", "/signals/{id}/explain"): Operation("A signal's lesson, with where each token's weight comes from"),
    ("GET", "/lessons"): Operation("A page of lessons, the newest first", query=LISTED_BY),
    ("GET", "/lessons/{id}"): Operation("One lesson, token by token"),
    ("GET", "/policy"): Operation("What each agent may learn"),
    ("PUT", "/policy/agents/{agent}"): Operation("What that agent may learn from now on", PolicyTable),
    ("DELETE", "/policy/agents/{agent}"): Operation("What she may learn is as the lane was started with again"),
    ("POST", "/forget"): Operation(
        "Take a signal, a context or an agent out again, as if never seen", ForgetRequest
    ),
    ("GET", "/ledger"): Operation("A page of the ledger", query=PAGE, answers=(JSON, NDJSON)),
    ("GET", "/ledger/summary"): Operation("What was served and learned, in all and by agent", query=ASKED_BY),
    ("GET", "/ledger/stream"): Operation(
        "The ledger's rows as they are committed", query=(*ROWS, "cursor"), answers=(STREAM,)
    ),
    ("GET", "/ledger/verify"): Operation("Is the ledger's chain unbroken?"),
    ("GET", "/ledger/{seq}"): Operation("One row of the ledger"),
    ("GET", "/adapters"): Operation("Every agent's shadow and versions"),
    ("POST", "/adapters/{agent}/promote"): Operation("Serve the agent's shadow"),
    ("POST", "/adapters/{agent}/rollback"): Operation("Serve an earlier version again", RollbackRequest),
    ("POST", "/adapters/{agent}/export"): Operation("Write a PEFT adapter directory", ExportRequest),
    ("GET", "/lora-adapters"): Operation("The adapters that operators loaded"),
    ("POST", "/lora-adapters"): Operation("How much each of them counts", list[ScaleRequest]),
    ("POST", "/lora-adapters/load"): Operation("Load an exported adapter", LoadRequest),
    ("POST", "/lora-adapters/unload"): Operation("Unload it", UnloadRequest),
}
"""Every route, by method and path."""

_QUERY_SCHEMAS: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "cursor": {"type": "integer", "minimum": 0},
    "newest": {"type": "boolean"},
    "each": {"type": "boolean"},
    "kind": {"type": "string", "enum": [str(kind) for kind in LedgerKind]},
}
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {"seq": {"type": "integer", "minimum": 1}}


def document(app: web.Application) -> dict[str, Any]:
    """The document of an application whose routes are all added."""
    bodies, components = _bodies()
    paths: dict[str, dict[str, Any]] = {}
    for method, path in _routes(app):
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, bodies.get((method, path)))
    return {
        "openapi": "3.1.0",
        "info": {"title": "ridealong", "version": __version__, "description": "A lane that learns as it serves."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def route(app: web.Application) -> web.RouteDef:
    """The route that serves the document; the application's last."""
    made: list[dict[str, Any]] = []

    async def openapi(_request: web.Request) -> web.Response:
        if not made:
            made.append(document(app))
        return web.json_response(made[0])

    return web.get("/openapi.json", openapi)


def _routes(app: web.Application) -> Iterator[tuple[str, str]]:
    for one in app.router.routes():
        if one.resource is not None and one.method != "HEAD":
            yield one.method, one.resource.canonical


def _bodies() -> tuple[dict[tuple[str, str], Any], dict[str, Any]]:
    """Each body's schema, and the schemas that they share."""
    adapters = [
        (key, "validation", TypeAdapter(operation.body))
        for key, operation in OPERATIONS.items()
        if operation.body is not None
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, ref_template=_SCHEMAS)  # type: ignore[arg-type]
    return {key: schema for (key, _), schema in schemas.items()}, shared.get("$defs", {})


def _operation(method: str, path: str, body: Any) -> dict[str, Any]:
    operation = OPERATIONS[method, path]
    told: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*_path_parameters(path), *_query_parameters(operation), *_headers(operation)],
        "responses": {
            "200": {"description": "done", "content": {kind: {"schema": {}} for kind in operation.answers}},
            "default": {"description": "an error, in the dialect's shape", "content": {JSON: {"schema": {}}}},
        },
    }
    if body is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    access = ACCESS.get((method, path), Access.OPERATORS)
    if access is not Access.EVERYONE:
        told["description"] = f"For {access}."
        told["security"] = [{"bearer": []}, {"key": []}, {}]
    return told


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            schema = _PATH_SCHEMAS.get(name, {"type": "string", "minLength": 1})
            yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in operation.query:
        yield {"name": name, "in": "query", "schema": _QUERY_SCHEMAS.get(name, {"type": "string"})}


def _headers(operation: Operation) -> Iterator[dict[str, Any]]:
    if not operation.speaks:
        return
    properties: Mapping[str, Any] = Metadata.model_json_schema()["properties"]
    for name, schema in properties.items():
        yield {"name": HEADER + name.title(), "in": "header", "schema": schema}
