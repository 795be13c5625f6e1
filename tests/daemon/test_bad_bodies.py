"""Bodies that are no request: an error in the dialect's shape within a second, and the next request is served."""

import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from daemon.http.bodies import parse_json
from daemon.http.errors import BadRequest
from tests.daemon.conftest import Running, Start
from tests.daemon.test_error_answers import KEYS, keys_of
from tests.daemon.test_limits import wire

SECONDS = 3.0
"""What is answered within a second, on a machine that does other things too."""

JSON = {"Content-Type": "application/json"}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True, slots=True)
class Route:
    """A route with a body that it takes, and the field of it that holds what is read."""

    path: str
    body: dict[str, Any]
    field: str
    dialect: str
    text: str = "%s"
    """The field's value in JSON, around the text that is read."""

    def with_field(self, value: str) -> bytes:
        """The body with that JSON for its field."""
        return self.with_also(f'"{self.field}": {value}')

    def with_text(self, text: str) -> bytes:
        """The body with that JSON string for what is read."""
        return self.with_field(self.text % text)

    def with_also(self, fields: str) -> bytes:
        """The body with more fields, or the same again."""
        return (json.dumps(self.body)[:-1] + f", {fields}}}").encode()


MESSAGE = '[{"role": "user", "content": %s}]'
NAMED = {"model": "tiny-chat", "max_tokens": 2}
ROUTES = [
    Route("/v1/chat/completions", NAMED | {"messages": HELLO}, "messages", "openai", MESSAGE),
    Route("/v1/completions", NAMED | {"prompt": "hello"}, "prompt", "openai"),
    Route("/v1/responses", {"model": "tiny-chat", "input": "hello"}, "input", "openai"),
    Route("/v1/messages", NAMED | {"messages": HELLO}, "messages", "anthropic", MESSAGE),
    Route(
        "/v1/messages/count_tokens", {"model": "tiny-chat", "messages": HELLO}, "messages", "anthropic", MESSAGE
    ),
    Route("/completion", {"prompt": "hello", "n_predict": 2}, "prompt", "llama"),
    Route("/tokenize", {"content": "hello"}, "content", "llama"),
    Route("/detokenize", {"tokens": [1]}, "tokens", "llama", "[%s]"),
    Route("/apply-template", {"messages": HELLO}, "messages", "llama", MESSAGE),
]
every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)


def bad_bodies(route: Route) -> Iterator[tuple[str, bytes]]:
    whole = json.dumps(route.body).encode()
    yield "empty", b""
    yield "broken off", whole[:-1]
    yield "two", whole * 2
    yield "not UTF-8", whole.replace(b"e", b"\xff")
    yield "10 MB of nonsense", b"\x00nonsense" * 1_000_000
    yield "a string of 10 MB", b'"' + b"x" * 10_000_000 + b'"'
    yield "a text of 10 MB", route.with_text('"' + "x y " * 2_500_000 + '"')
    yield "an unknown field", route.with_also('"martian": 1')
    yield "an unknown field of a lone surrogate", route.with_also('"\\ud800": 1')
    yield "a lone surrogate", route.with_text('"\\ud800"')
    yield (
        "100,000 messages",
        route.with_field("[" + ", ".join(['{"role": "user", "content": "x"}'] * 100_000) + "]"),
    )
    for depth in (100, 400, 900, 5_000, 1_000_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} lists in an unknown field", route.with_also(f'"deep": {"[" * depth}{"]" * depth}')
        yield f"{depth} objects in its field", route.with_field('{"a": ' * depth + "1" + "}" * depth)
        yield f"{depth} objects in its text", route.with_text('{"a": ' * depth + "1" + "}" * depth)
    for wrong in (
        "1e400",
        "-1e400",
        "1" + "0" * 400,
        "1" + "0" * 5000,
        "NaN",
        "-Infinity",
        "true",
        "{}",
        "[[[]]]",
    ):
        yield f"{wrong[:9]} for its field", route.with_field(wrong)
        yield f"{wrong[:9]} for its text", route.with_text(wrong)


@every_route
async def test_a_bad_body_is_an_error_of_its_dialect_within_a_second(running: Running, route: Route) -> None:
    for name, body in bad_bodies(route):
        begun = time.monotonic()
        async with running.http.post(running.url + route.path, data=io.BytesIO(body), headers=JSON) as answer:
            told = await answer.json()
        assert answer.status == 400, (name, told)
        assert keys_of(told) == KEYS[route.dialect], name
        assert time.monotonic() - begun < SECONDS, name
        assert len(told["error"]["message"]) < 1000, name
    assert (await running.post(route.path, route.body))[0] == 200


@pytest.mark.parametrize(
    "data", [b"NaN", b'{"a": [-Infinity]}', b"1" + b"0" * 5000, b"[" * 100_000, b"\xff", b"", b"{'a': 1}", b"1 2"]
)
def test_what_the_standard_does_not_call_json_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="not JSON"):
        parse_json(data)


NUMBERS = {
    "/v1/chat/completions": ("max_tokens", "temperature", "seed", "n", "top_k", "top_logprobs"),
    "/v1/completions": ("max_tokens", "temperature", "seed", "n", "logprobs"),
    "/v1/responses": ("max_output_tokens", "temperature", "top_p"),
    "/v1/messages": ("max_tokens", "temperature", "top_k"),
    "/completion": ("n_predict", "temperature", "seed", "n_probs", "id_slot", "repeat_penalty"),
}


@pytest.mark.parametrize("path", NUMBERS)
async def test_a_number_without_bounds_is_no_servers_error(running: Running, path: str) -> None:
    route = next(route for route in ROUTES if route.path == path)
    for name in NUMBERS[path]:
        for number in ("1e400", "-1e400", "1" + "0" * 400, "NaN", "1e308", "-1e308", str(2**63), str(-(2**64))):
            async with running.http.post(
                running.url + path, data=route.with_also(f'"{name}": {number}')
            ) as answer:
                told = await answer.json()
            assert answer.status in {200, 400}, (name, number, told)
            assert answer.status == 200 or keys_of(told) == KEYS[route.dialect]
    assert (await running.post(path, route.body))[0] == 200


@every_route
async def test_nul_characters_are_text_like_any_other(running: Running, route: Route) -> None:
    if route.field == "tokens":
        return
    body = route.with_text('"a\\u0000b"')
    async with running.http.post(running.url + route.path, data=body) as answer:
        assert answer.status == 200, await answer.text()
    assert (await running.get("/ledger/verify"))["why"] is None


@every_route
async def test_of_a_field_that_is_given_twice_the_last_counts(running: Running, route: Route) -> None:
    value = json.dumps(route.body[route.field])
    async with running.http.post(
        running.url + route.path, data=route.with_field(f'3, "{route.field}": {value}')
    ) as answer:
        assert answer.status == 200, await answer.text()


@every_route
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"model=tiny-chat&prompt=hello"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--x--',
        ),
        ("application/xml", b"<prompt>hello</prompt>"),
        ("nonsense", b"\x00\x01"),
    ],
)
async def test_a_body_of_another_kind_is_a_400(running: Running, route: Route, kind: str, body: bytes) -> None:
    async with running.http.post(running.url + route.path, data=body, headers={"Content-Type": kind}) as answer:
        assert answer.status == 400
        assert keys_of(await answer.json()) == KEYS[route.dialect]


@every_route
async def test_another_method_is_a_405_that_says_which_there_is(running: Running, route: Route) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
        async with running.http.request(method, running.url + route.path) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
            assert keys_of(await answer.json()) == KEYS[route.dialect]


LIES = {
    "a length past what comes": (b"Content-Length: 1000", b"{}", b" 408 "),
    "chunks without an end": (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n", b" 408 "),
    "a chunk that is no chunk": (b"Transfer-Encoding: chunked", b"what?\r\n{}\r\n", b" 400 "),
    "a gzip that is none": (b"Content-Encoding: gzip\r\nContent-Length: 2", b"{}", b" 400 "),
    "no length but a body": (b"X: y", b"", b" 400 "),
}


@every_route
@pytest.mark.parametrize("lie", LIES)
async def test_a_head_that_lies_about_its_body_is_found_out(start: Start, route: Route, lie: str) -> None:
    head, sent, status = LIES[lie]
    async with start(read_seconds=0.2) as running:
        async with wire(running) as (reader, writer):
            writer.write(
                b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n%b" % (route.path.encode(), head, sent)
            )
            assert status in await reader.readline()
        assert (await running.post(route.path, route.body))[0] == 200


@every_route
async def test_a_sender_that_breaks_off_leaves_nothing_behind(running: Running, route: Route) -> None:
    async with wire(running) as (_, writer):
        writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{" % route.path.encode())
        await writer.drain()
        parts = running.service._parts
        assert parts is not None

        async def here() -> bool:
            return bool(parts.requests._tasks)

        await running.until(here)

    async def gone() -> bool:
        return not parts.requests._tasks

    await running.until(gone)
    assert (await running.post(route.path, route.body))[0] == 200
