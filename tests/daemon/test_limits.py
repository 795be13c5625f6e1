"""What is too much, too slow or too many is told so at once, and whoever is served does not notice."""

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from daemon.config import ConfigError, Settings, read_settings
from daemon.dialects.prompts import Prompts
from daemon.http.connections import Connection, Door
from daemon.http.errors import BadRequest, TooMany
from daemon.http.limits import ALWAYS_CHARS, Most, SignalRoom, TextLimit
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.steps import one_by_one
from tests.daemon.test_disconnects import having

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
ASK = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 4}


def test_room_that_will_never_be_there_is_a_mistake_and_room_that_is_taken_is_too_many() -> None:
    room = SignalRoom(3)
    room.take(2)
    with pytest.raises(TooMany, match="3 signals at once, and has 2") as refused:
        room.take(2)
    assert refused.value.headers == {"Retry-After": "1"}
    with pytest.raises(BadRequest, match="takes 3 signals at once, and 4 were"):
        room.take(4)
    room.leave(2)
    room.take(3)


def test_a_text_is_refused_only_if_no_tokenizing_could_make_it_fit() -> None:
    limit = TextLimit(context_tokens=10_000, longest_token_chars=30)
    limit.check("x" * 300_000, param="prompt")
    with pytest.raises(BadRequest, match="prompt is 300001 characters") as refused:
        limit.check("x" * 300_001, param="prompt")
    assert refused.value.code == "context_length_exceeded"
    TextLimit(context_tokens=16, longest_token_chars=4).check("x" * ALWAYS_CHARS, param="prompt")


def test_a_most_counts_what_is_asked_for_with_what_is_there() -> None:
    Most(4, "turns", "--queue").check(2, taken=2)
    with pytest.raises(TooMany):
        Most(4, "turns", "--queue").check(2, taken=3)


async def test_of_many_at_once_those_get_in_that_there_is_room_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(slots=1, queue=2) as running:
        with one_by_one(monkeypatch) as steps:
            asked = [asyncio.create_task(running.ask(str(i))) for i in range(8)]
            await running.until(having(lambda: running.service.lane.live_turns == 3))
            await running.until(having(lambda: sum(task.done() for task in asked) == 5))
            steps.go_on()
            statuses = [answer["status"] for answer in await asyncio.gather(*asked)]
        assert sorted(statuses) == [200] * 3 + [429] * 5
        assert (await running.ask())["status"] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ASK),
        ("/v1/completions", {"model": "tiny-chat", "prompt": "hello"}),
        ("/v1/responses", {"model": "tiny-chat", "input": "hello"}),
        ("/v1/messages", ASK),
        ("/completion", {"prompt": "hello"}),
    ],
)
async def test_a_full_queue_is_a_429_in_the_shape_of_the_dialect(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    async with start(slots=1, queue=0) as running:
        with one_by_one(monkeypatch) as steps:
            first = asyncio.create_task(running.ask())
            await steps.at(1)
            async with running.http.post(running.url + path, json=body) as answer:
                told = await answer.json()
                assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert "--queue" in told["error"]["message"]
            assert told["error"].get("code", 429) in {429, None}
            assert told["error"]["type"] in {"rate_limit_error"}
            steps.go_on()
            assert (await first)["status"] == 200
        assert (await running.post(path, body))[0] == 200


async def test_each_choice_takes_room(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(slots=1, queue=2) as running:
        assert (await running.post(CHAT, ASK | {"n": 3}))[0] == 200
        status, told = await running.post(CHAT, ASK | {"n": 4})
        assert (status, "4 were asked for" in told["error"]["message"]) == (400, True)
        with one_by_one(monkeypatch) as steps:
            first = asyncio.create_task(running.ask())
            await steps.at(1)
            assert (await running.post(CHAT, ASK | {"n": 3}))[0] == 429
            steps.go_on()
            await first


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, ASK | {"messages": HELLO * 5}, "messages"),
        (CHAT, ASK | {"tools": [{}] * 5}, "tools"),
        (CHAT, ASK | {"learn": {"messages": HELLO * 5}}, "learn.messages"),
        ("/v1/messages", ASK | {"messages": HELLO * 5}, "messages"),
        ("/v1/messages/count_tokens", {"model": "tiny-chat", "messages": HELLO * 5}, "messages"),
        ("/v1/responses", {"model": "tiny-chat", "input": HELLO * 5}, "input"),
        ("/apply-template", {"messages": HELLO * 5}, "messages"),
    ],
)
async def test_too_many_messages_are_refused_before_any_is_rendered(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, param: str
) -> None:
    def never(*_args: Any) -> None:
        raise AssertionError("it was rendered")

    monkeypatch.setattr(Prompts, "prepare", never)
    async with start(max_messages=4) as running:
        status, told = await running.post(path, body)
        assert status == 400
        assert told["error"]["message"].startswith(f"{param} has 5 entries, this lane takes 4")


async def test_signals_on_their_way_have_a_most(start: Start) -> None:
    def signals(count: int) -> list[dict[str, str]]:
        own = {"agent": AGENT, "context": "room", "kind": "verdict", "turn": "turn-1", "outcome": "passed"}
        return [own | {"id": f"s{i}"} for i in range(count)]

    async with start(max_signals=3) as running:
        assert running.service._parts is not None
        intake = running.service._parts.intake
        async with intake._one_settles:
            first = asyncio.create_task(running.post("/signals", signals(2)))
            await running.until(having(lambda: bool(intake._work)))
            async with running.http.post(f"{running.url}/signals", json=signals(2)) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert (await running.post("/signals", signals(4)))[0] == 400
        assert (await first)[0] == 200
        await intake.settled()
        assert (await running.post("/signals", signals(3)))[0] == 200


def port(running: Running) -> int:
    return int(running.url.rpartition(":")[2])


@asynccontextmanager
async def wire(running: Running) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection without a client that knows HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port(running))
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_connection_too_many_is_answered_503_and_closed(start: Start) -> None:
    async with start(max_connections=2) as running, wire(running), wire(running) as (_, second):
        async with wire(running) as (reader, writer):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in head
            assert b"--max-connections" in body
        async with wire(running) as (reader, _):
            assert await reader.read() == b"", "it says nothing, and is closed all the same"
        second.close()
        async with aiohttp.ClientSession() as http:

            async def served() -> bool:
                async with http.get(f"{running.url}/health") as answer:
                    return answer.status == 200

            await running.until(served)


async def dribble(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, then: Iterator[bytes]
) -> bytes:
    """Send a piece at a time until the other side says something or closes; all that it says."""
    writer.write(first)
    for piece in then:
        try:
            said = await asyncio.wait_for(reader.read(1), timeout=0.02)
        except TimeoutError:
            writer.write(piece)
        else:
            return said + (await reader.read() if said else b"")
    raise AssertionError("it was not cut off")


def letters() -> Iterator[bytes]:
    for _ in range(1000):
        yield b"x"


async def test_a_head_that_comes_a_letter_at_a_time_is_cut_off(start: Start) -> None:
    async with start(keep_alive_seconds=0.3) as running, wire(running) as (reader, writer):
        assert await dribble(reader, writer, b"GET /health HTTP/1.1\r\nHost: ", letters()) == b""
        assert (await running.ask())["status"] == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/completion", "/signals"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_comes_a_letter_at_a_time_is_a_408(start: Start, path: str, chunked: bool) -> None:
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 100000"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    async with start(read_seconds=0.3) as running, wire(running) as (reader, writer):
        pieces = (b"1\r\nx\r\n" if chunked else letter for letter in letters())
        said = await dribble(reader, writer, head, pieces)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"--read-seconds" in said
        assert (await running.ask())["status"] == 200


async def test_a_connection_that_is_idle_is_closed(start: Start) -> None:
    async with start(keep_alive_seconds=0.3) as running, wire(running) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(start: Start) -> None:
    async with start(max_body_mib=1) as running, wire(running) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")


@contextmanager
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the system take little of what is sent: what a client doesn't read is soon unsent."""
    made = Connection.connection_made

    def with_small_buffer(self: Connection, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "connection_made", with_small_buffer)
        yield


STREAM = (
    '{"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 200, "seed": 2, '
    '"stream": true, "logprobs": true, "top_logprobs": 20}'
)


def streaming(running: Running) -> socket.socket:
    """A client that has asked for a long stream, and has little room for what comes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port(running)))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Length: {len(STREAM)}\r\n\r\n{STREAM}".encode())
    return client


def wait_for_reset(client: socket.socket) -> None:
    """Return once the other side has cut the connection, without reading from it."""
    poll = select.poll()
    poll.register(client, 0)
    assert poll.poll(30_000), "the connection was not cut off"


async def test_a_client_that_does_not_read_is_cut_off_and_its_turn_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_buffers(monkeypatch):
        async with start(slots=1, write_seconds=0.2) as running:
            with one_by_one(monkeypatch) as steps:
                lane = running.service.lane
                steps.allow(100)
                with streaming(running) as client:
                    await asyncio.to_thread(wait_for_reset, client)
                await running.until(having(lambda: not lane._jobs.empty() or lane.live_turns == 0))
                steps.go_on()
                await running.until(having(lambda: lane.live_turns == 0))
            assert (await running.ask())["status"] == 200
            rows = (await running.get("/ledger", kind="turn"))["rows"]
            assert [row["body"]["finish_reason"] for row in rows] == ["cancelled", "length"]


class Wire(asyncio.Transport):
    """A client that has so much left to take each time it is looked at."""

    def __init__(self, end: socket.socket, *unsent: int) -> None:
        super().__init__({"socket": end})
        self.unsent = list(unsent)
        self.cut_off = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.unsent.pop(0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (0, None), "what the system does not take would go unseen"

    def close(self) -> None:
        assert self.cut_off.is_set()

    def abort(self) -> None:
        self.cut_off.set()


async def test_a_client_that_takes_something_each_time_is_let_be_and_one_that_does_not_is_cut_off() -> None:
    async def nothing(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    door = Door(web.Server(nothing), Settings(write_seconds=0.001))
    with socket.socket() as end:
        connection, wire = door(), Wire(end, 100, 60, 59, 59, 58)
        connection.connection_made(wire)
        assert isinstance(connection, Connection)
        connection.pause_writing()
        await wire.cut_off.wait()
        assert wire.unsent == [58]
        connection.connection_lost(None)


async def test_all_bodies_that_are_held_at_once_have_a_most(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "tiny-chat", "prompt": "hello", "max_tokens": 4, "user": "x" * 700_000}
    async with start(max_body_mib=1, max_bodies_mib=1, slots=1) as running:
        with one_by_one(monkeypatch) as steps:
            first = asyncio.create_task(running.post("/v1/completions", body))
            await steps.at(1)
            async with running.http.post(f"{running.url}/v1/completions", json=body) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert "--max-bodies-mib" in (await answer.json())["error"]["message"]
            small = asyncio.create_task(running.ask())
            await running.until(having(lambda: running.service.lane.live_turns == 2))
            steps.go_on()
            assert (await first)[0] == (await small)["status"] == 200
        assert (await running.post("/v1/completions", body))[0] == 200


def test_there_is_room_for_one_body() -> None:
    with pytest.raises(ConfigError, match="max-bodies-mib"):
        read_settings({"max_body_mib": 300}, {})
