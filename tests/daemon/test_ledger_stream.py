"""The ledger's stream: every row once, in order, from wherever a client left off, whatever the client is like."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from sqlalchemy.orm import Session

from daemon.http import ledger_stream
from store import ledger
from store.ledger import Filter, Page
from store.records import Entry
from store.store import Store
from store.words import LedgerKind
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_keys import ADAS, BOBS, OPERATORS, guarded
from tests.daemon.test_learning import corrected, go_on

__all__ = ["guarded"]


def entries(count: int, agent: str = AGENT, size_chars: int = 1) -> list[Entry]:
    body = {"said": "x" * size_chars}
    return [
        Entry(kind=LedgerKind.POLICY, agent=agent, context=None, subject=f"p{n}", body=body) for n in range(count)
    ]


class Stream:
    """An open stream, read an event at a time. What is no event is in `comments`."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.comments: list[str] = []

    async def text(self) -> str | None:
        """The next block of lines; None at the end."""
        block = b""
        async with asyncio.timeout(20):
            while line := await self._answer.content.readline():
                if line == b"\n":
                    return block.decode()
                block += line
        assert not block, "the stream ended inside an event"
        return None

    async def event(self) -> dict[str, Any] | None:
        """The next row, checked against its own frame; None at the end."""
        while (text := await self.text()) is not None:
            if text.startswith((":", "retry")):
                self.comments.append(text)
                continue
            fields = dict(line.split(": ", 1) for line in text.splitlines())
            row: dict[str, Any] = json.loads(fields["data"])
            assert (int(fields["id"]), fields["event"]) == (row["seq"], row["kind"])
            return row
        return None

    async def seqs(self, count: int) -> list[int]:
        rows = [await self.event() for _ in range(count)]
        return [row["seq"] for row in rows if row is not None]


@asynccontextmanager
async def stream(running: Running, headers: dict[str, str] | None = None, **query: str) -> AsyncIterator[Stream]:
    async with running.http.get(f"{running.url}/ledger/stream", params=query, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        opened = Stream(answer)
        assert await opened.text() == "retry: 2000\n"
        yield opened


async def append(store: Store, *rows: Entry) -> None:
    await store.write(ledger.append_all, rows)


async def test_a_lesson_is_told_as_it_comes_about_and_each_row_is_the_ledgers(running: Running) -> None:
    async with stream(running) as follower:
        await corrected(running)
        await go_on(running)
        told: list[dict[str, Any]] = []
        while not told or told[-1]["kind"] != "step":
            row = await follower.event()
            assert row is not None
            told.append(row)
    assert [row["kind"] for row in told if row["kind"] != "promotion"][:3] == ["turn", "signal", "lesson"]
    assert told == (await running.get("/ledger"))["rows"][: len(told)]


async def test_a_client_comes_again_where_it_left_off(running: Running) -> None:
    await append(running.store, *entries(5))
    async with stream(running, cursor="0") as follower:
        assert await follower.seqs(3) == [1, 2, 3]
    async with stream(running, cursor="0", headers={"Last-Event-ID": "3"}) as follower:
        assert await follower.seqs(2) == [4, 5]
        await append(running.store, *entries(1))
        assert await follower.seqs(1) == [6]
    async with stream(running) as follower:
        await append(running.store, *entries(1))
        assert await follower.seqs(1) == [7]


async def test_many_clients_of_every_age_have_every_row_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_stream, "PAGE_ROWS", 7)
    running.service._parts.feed._recent = type(running.service._parts.feed._recent)(maxlen=5)  # type: ignore[union-attr]
    total = 120

    async def write() -> None:
        for _ in range(total // 3):
            await append(running.store, *entries(3))

    async def read(cursor: int) -> list[int]:
        async with stream(running, cursor=str(cursor)) as follower:
            return await follower.seqs(total - cursor)

    got = await asyncio.gather(write(), *(read(cursor) for cursor in range(0, 100, 10)))
    for cursor, seqs in zip(range(0, 100, 10), got[1:], strict=True):
        assert seqs == list(range(cursor + 1, total + 1))


async def test_a_filter_holds_back_what_is_stored_and_what_comes(running: Running) -> None:
    await append(running.store, *entries(2), *entries(1, "bob"))
    async with stream(running, cursor="0", kind="policy", agent="bob") as follower:
        assert await follower.seqs(1) == [3]
        await append(running.store, *entries(2), *entries(1, "bob"))
        assert await follower.seqs(1) == [6]


async def test_a_filter_that_is_none_of_a_streams_is_refused(running: Running) -> None:
    for query in ("newest=true", "limit=3", "kind=gossip", "cursor=x"):
        async with running.http.get(f"{running.url}/ledger/stream?{query}") as answer:
            assert answer.status == 400, query
    async with running.http.get(f"{running.url}/ledger/stream", headers={"Last-Event-ID": "x"}) as answer:
        assert answer.status == 400
        assert "Last-Event-ID" in (await answer.json())["error"]["message"]


async def test_a_silent_stream_is_kept_open_whatever_the_filter_holds_back(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_stream, "HEARTBEAT_SECONDS", 0.05)
    async with stream(running, agent="bob") as follower:
        assert await follower.text() == ": heartbeat\n"

        async def pour() -> None:
            while True:
                await append(running.store, *entries(1))

        pouring = asyncio.create_task(pour())
        assert await follower.text() == ": heartbeat\n"
        pouring.cancel()


async def test_a_client_that_reads_nothing_holds_nobody_up_and_has_everything_later(start: Start) -> None:
    async with start(write_seconds=600) as running, stream(running, cursor="0") as slow:
        size_chars, batches = 50_000, 30
        for _ in range(batches):
            await append(running.store, *entries(10, size_chars=size_chars))
        async with stream(running, cursor=str(10 * batches - 1)) as quick:
            assert await quick.seqs(1) == [10 * batches]
        assert await slow.seqs(10 * batches) == list(range(1, 10 * batches + 1))


async def test_told_to_stop_the_service_ends_a_stream_after_a_whole_event(start: Start) -> None:
    async with start(drain_seconds=600) as running:
        await append(running.store, *entries(3))
        async with stream(running, cursor="0") as follower:
            assert await follower.seqs(3) == [1, 2, 3]
            parts = running.service._parts
            assert parts is not None
            parts.feed.close()
            assert await follower.event() is None


async def test_nobody_asks_the_database_while_nothing_comes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    page = ledger.page_onward

    def counted(session: Session, filter_: Filter, *, cursor: int, limit: int) -> Page:
        reads.append(cursor)
        return page(session, filter_, cursor=cursor, limit=limit)

    monkeypatch.setattr(ledger, "page_onward", counted)
    async with stream(running) as follower:
        await append(running.store, *entries(1))
        await follower.seqs(1)
        known = len(reads)
        for _ in range(20):
            await append(running.store, *entries(1))
            await follower.seqs(1)
    assert len(reads) == known <= 2


async def test_an_agents_stream_has_her_own_rows(guarded: Running) -> None:
    await append(guarded.store, *entries(1), *entries(1, "bob"))
    async with stream(guarded, cursor="0", headers=BOBS) as follower:
        assert await follower.seqs(1) == [2]
    async with stream(guarded, cursor="0", headers=OPERATORS) as follower:
        assert await follower.seqs(2) == [1, 2]
    async with guarded.http.get(f"{guarded.url}/ledger/stream?agent=bob", headers=ADAS) as answer:
        assert answer.status == 403
