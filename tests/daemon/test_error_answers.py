"""One error body for each dialect, whatever went wrong and before whichever handler."""

from typing import Any

import pytest

from daemon.http.error_answers import error_body
from daemon.http.errors import BadRequest, NotFound, ServiceError, Unavailable
from tests.daemon.conftest import Running, Start

ANTHROPIC = ["/v1/messages", "/v1/messages/count_tokens"]
LLAMA = ["/completion", "/tokenize", "/detokenize", "/apply-template", "/props", "/slots", "/lora-adapters"]
OPENAI = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/signals", "/ledger/1", "/x"]
ERRORS: list[tuple[ServiceError, str, str]] = [
    (BadRequest("no", param="n", code="c"), "invalid_request_error", "invalid_request_error"),
    (NotFound("no"), "not_found_error", "not_found_error"),
    (Unavailable("no"), "overloaded_error", "unavailable_error"),
    (ServiceError("no"), "api_error", "server_error"),
]


@pytest.mark.parametrize(("error", "anthropic", "kind"), ERRORS)
def test_an_error_has_the_shape_of_its_dialect(error: ServiceError, anthropic: str, kind: str) -> None:
    for path in ANTHROPIC:
        body = error_body(error, path)
        assert body.pop("request_id").startswith("req_")
        assert body == {"type": "error", "error": {"type": anthropic, "message": "no"}}
    for path in LLAMA:
        assert error_body(error, path) == {"error": {"code": error.status, "message": "no", "type": kind}}
    for path in OPENAI:
        told = {"message": "no", "type": kind, "param": error.param, "code": error.code}
        assert error_body(error, path) == {"error": told}


def keys_of(body: Any) -> set[str]:
    return set(body) | set(body["error"])


KEYS = {
    "openai": {"error", "message", "type", "param", "code"},
    "anthropic": {"type", "error", "message", "request_id"},
    "llama": {"error", "code", "message", "type"},
}


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/v1/nothing", "openai"), ("/v1/messages/nothing", "anthropic"), ("/slots/nothing", "llama")],
)
async def test_a_path_that_is_not_there_answers_in_its_dialect(running: Running, path: str, dialect: str) -> None:
    async with running.http.get(running.url + path) as answer:
        assert answer.status == 404
        assert keys_of(await answer.json()) == KEYS[dialect]


@pytest.mark.parametrize(
    ("path", "dialect"), [("/v1/chat/completions", "openai"), ("/v1/completions", "openai"), ("/slots", "llama")]
)
async def test_another_method_is_a_405_that_names_those_allowed(running: Running, path: str, dialect: str) -> None:
    async with running.http.delete(running.url + path) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"]
        assert keys_of(await answer.json()) == KEYS[dialect]


async def test_a_body_that_is_too_large_is_a_413(start: Start) -> None:
    async with start(max_body_mib=0.001) as running:
        status, body = await running.post("/v1/completions", {"prompt": "x" * 2000})
        assert (status, keys_of(body)) == (413, KEYS["openai"])
        assert (await running.ask())["status"] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/signals"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"model": 1}', b"[" * 100_000])
async def test_a_body_that_is_no_request_is_a_400(running: Running, path: str, data: bytes) -> None:
    async with running.http.post(running.url + path, data=data) as answer:
        assert answer.status == 400
        assert keys_of(await answer.json()) == KEYS["openai"]
