"""Whatever is sent to whatever route: an error in its dialect's shape, never one of ours, and the next is served.

The routes are those of `ACCESS`, which `tests/daemon/test_openapi.py` holds to the application's own: one that is
added is asked the same as all others. `tests/daemon/test_bad_bodies.py` goes into the bodies of the dialects.
"""

import io
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from daemon.http.access import ACCESS
from daemon.http.error_answers import error_body
from daemon.http.errors import NotFound
from daemon.http.ledger_json import PAGE
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_bad_bodies import LIES, SECONDS
from tests.daemon.test_error_answers import keys_of
from tests.daemon.test_limits import wire

POSTS = sorted(path for method, path in ACCESS if method == "POST")
GETS = sorted(path for method, path in ACCESS if method == "GET")
NO_BODY = {"/adapters/{agent}/promote"}
"""They read no body, whatever it is."""

BODIES = {
    "empty": b"",
    "broken off": b'{"a": ',
    "two": b"{}{}",
    "not UTF-8": b'{"a": "\xff"}',
    "10 MB of nonsense": b"\x00nonsense" * 1_000_000,
    "a string of 10 MB": b'"' + b"x" * 10_000_000 + b'"',
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects in a list": b"[" + b"{}, " * 100_000 + b"{}]",
    "100,000 fields": b"{" + b", ".join(b'"f%d": 1' % i for i in range(100_000)) + b"}",
    "a lone surrogate": b'{"\\ud800": "\\udfff"}',
    "NUL": b'{"\\u0000": "\\u0000"}',
    "null": b"null",
    "true": b"true",
    "NaN": b"NaN",
    "a number past all": b"1" + b"0" * 5000,
    "lists": b"[[[]]]",
    "an unknown field": b'{"martian": 1}',
}
WORDS = ("", "\x00", "x" * 4000, "9" * 400, "-1", "1e400", "../../etc/passwd", "é\U0001f41d", "' OR 1=1 --")


def of_agent(path: str) -> str:
    return path.replace("{agent}", "nobody")


def shape_of(path: str) -> set[str]:
    return keys_of(error_body(NotFound("no"), path))


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_no_request_is_refused_within_a_second(running: Running, path: str) -> None:
    for name, body in BODIES.items():
        begun = time.monotonic()
        async with running.http.post(running.url + of_agent(path), data=io.BytesIO(body)) as answer:
            told = await answer.json()
        assert answer.status == (404 if path in NO_BODY else 400), (name, told)
        assert keys_of(told) == shape_of(path), name
        assert len(told["error"]["message"]) < 1000, name
        assert time.monotonic() - begun < SECONDS, name
    assert (await running.ask())["status"] == 200


@pytest.mark.parametrize("path", POSTS)
async def test_a_head_that_lies_about_its_body_is_found_out(start: Start, path: str) -> None:
    async with start(read_seconds=0.1) as running:
        for lie, (head, sent, status) in LIES.items():
            if path in NO_BODY and lie == "no length but a body":
                continue
            async with wire(running) as (reader, writer):
                asked = f"POST {of_agent(path)} HTTP/1.1\r\nHost: localhost\r\n".encode()
                writer.write(asked + head + b"\r\n\r\n" + sent)
                assert status in await reader.readline(), lie
        assert (await running.ask())["status"] == 200


@pytest.mark.parametrize("path", GETS)
async def test_no_word_in_a_path_or_a_query_is_a_failure(running: Running, path: str) -> None:
    await running.ask()
    for word in (*map(quote, WORDS), "%ED%A0%80", "%FF"):
        word_in_path = path.replace("{id}", word).replace("{seq}", word)
        for query in ("", *(f"?{name}={word}" for name in PAGE)):
            async with running.http.get(URL(running.url + word_in_path + query, encoded=True)) as answer:
                assert answer.status < 500, (word, query)
                if answer.status >= 400:
                    assert keys_of(await answer.json()) == shape_of(path), (word, query)
    assert (await running.ask())["status"] == 200


SIGNAL: dict[str, Any] = {"agent": AGENT, "context": "room"}


async def test_a_text_that_is_none_is_not_taken_as_a_signal(running: Running) -> None:
    turn = (await running.ask())["turn"]
    correction = SIGNAL | {"id": "c", "kind": "correction", "turn": turn}
    for field, text in (("reply", "\ud800"), ("id", "\ud800"), ("turn", "\udfff")):
        status, told = await running.post("/signals", correction | {"reply": "bees"} | {field: text})
        assert status == 400, told
    assert (await running.post("/signals", correction | {"reply": "a\x00b"}))[0] == 200
    assert (await running.get("/ledger/verify"))["why"] is None


@pytest.mark.parametrize("path", ["/signals", "/learn"])
async def test_a_reply_of_10_mb_holds_nobody_up(running: Running, path: str) -> None:
    turn = (await running.ask())["turn"]
    asked = {"turn": turn, "reply": "x y " * 2_500_000}
    body = asked if path == "/learn" else SIGNAL | {"id": "c", "kind": "correction"} | asked
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
    begun = time.monotonic()
    data = io.BytesIO(json.dumps(body).encode())
    async with running.http.post(running.url + path, data=data, headers=who) as answer:
        told = await answer.text()
    assert time.monotonic() - begun < SECONDS, told[:300]
    assert answer.status < 500, told[:300]
    assert (await running.ask())["status"] == 200
