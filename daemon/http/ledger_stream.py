"""`GET /ledger/stream`: the ledger's rows as server-sent events, as they are committed.

- Nobody asks the database whether there is news: the store tells of the rows that were committed, once for
  everyone, and the newest are kept at hand. Whoever is further behind reads pages until they catch up.
- A client that reads slowly holds nothing up and has nothing kept for it but its place.
- An event's id is its row's seq, so that a client comes again where it left off.
- Told to stop, the service ends every stream after a whole event.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from daemon.http.access import caller_of
from daemon.http.ledger_json import ROWS, filter_of, integer_of, row_json
from store import ledger
from store.ledger import Filter
from store.records import LedgerRow
from store.store import Store

RECENT_ROWS = 1_000
"""Rows kept at hand: about a megabyte, and minutes of a busy lane."""

PAGE_ROWS = 200
"""Rows read and written together by whoever is further behind."""

HEARTBEAT_SECONDS = 15.0
"""How long a stream is silent at most: proxies cut off what is silent for half a minute."""

_BEGINNING = b"retry: 2000\n\n"
"""How many milliseconds after its end a browser asks for the stream again."""

_LAST = "Last-Event-ID"
_HEARTBEAT = b": heartbeat\n\n"


class LedgerFeed:
    """The newest rows at hand, and word of the next ones. Made on the event loop that it serves."""

    def __init__(self, store: Store) -> None:
        self._recent: deque[LedgerRow] = deque(maxlen=RECENT_ROWS)
        self._next = asyncio.Event()
        self.closed = False
        loop = asyncio.get_running_loop()

        def tell(rows: Sequence[LedgerRow]) -> None:
            loop.call_soon_threadsafe(self._take, rows)

        store.on_append(tell)

    def next(self) -> asyncio.Event:
        """An event that is set when rows come after those at hand now, or when the feed is closed."""
        return self._next

    def after(self, seq: int) -> Sequence[LedgerRow] | None:
        """Every row after that one; None when some have left, or were never here: another writer's."""
        rows = [row for row in self._recent if row.seq > seq]
        return rows if not rows or rows[-1].seq - seq == len(rows) else None

    def close(self) -> None:
        """Have every stream end."""
        self.closed = True
        self._next.set()

    def _take(self, rows: Sequence[LedgerRow]) -> None:
        self._recent.extend(rows)
        came, self._next = self._next, asyncio.Event()
        came.set()


class LedgerStream:
    """Serves the route."""

    def __init__(self, store: Store, feed: LedgerFeed) -> None:
        self._store = store
        self._feed = feed

    def routes(self) -> list[web.RouteDef]:
        """The route."""
        return [web.get("/ledger/stream", self.handle, allow_head=False)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send rows for as long as the client stays."""
        query = dict(request.query)
        wanted = filter_of(query, (*ROWS, "cursor"))
        wanted = replace(wanted, agent=caller_of(request).meant(wanted.agent))
        seq = _seq_of(request)
        if seq is None:
            seq = await self._store.read(ledger.last_seq)
        response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        await response.write(_BEGINNING)
        await _Follower(response, wanted, seq).follow(self._store, self._feed)
        await response.write_eof()
        return response


class _Follower:
    """One client: its place in the ledger, and when it was last written to."""

    def __init__(self, response: web.StreamResponse, wanted: Filter, seq: int) -> None:
        self._response = response
        self._wanted = wanted
        self._seq = seq
        self._behind = True  # what the feed has at hand may begin later
        self._written_at = time.monotonic()

    async def follow(self, store: Store, feed: LedgerFeed) -> None:
        """Send what comes until the feed is closed."""
        while not feed.closed:
            news = feed.next()
            rows = None if self._behind else feed.after(self._seq)
            if rows is None:
                await self._read_page(store)
            elif rows:
                self._seq = rows[-1].seq
                await self._send([row for row in rows if self._wanted.lets_through(row)])
            else:
                await self._wait(news)

    async def _read_page(self, store: Store) -> None:
        page = await store.read(ledger.page_onward, self._wanted, cursor=self._seq, limit=PAGE_ROWS)
        assert page.next_cursor is not None, "a page to go on from says where"
        self._seq, self._behind = page.next_cursor, len(page.rows) == PAGE_ROWS
        await self._send(page.rows)

    async def _send(self, rows: Sequence[LedgerRow]) -> None:
        if rows:
            await self._write("".join(map(_event, rows)).encode())
        elif self._silent_seconds() >= HEARTBEAT_SECONDS:
            await self._write(_HEARTBEAT)

    async def _wait(self, news: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS - self._silent_seconds()):
                await news.wait()
        except TimeoutError:
            await self._write(_HEARTBEAT)

    async def _write(self, data: bytes) -> None:
        await self._response.write(data)
        self._written_at = time.monotonic()

    def _silent_seconds(self) -> float:
        return time.monotonic() - self._written_at


def _seq_of(request: web.Request) -> int | None:
    """The last row that the client has, if it says: what a browser says by itself is newer than its URL."""
    said = {name: request.headers[name] for name in (_LAST,) if name in request.headers}
    return integer_of(said, _LAST) if said else integer_of(request.query, "cursor")


def _event(row: LedgerRow) -> str:
    return f"id: {row.seq}\nevent: {row.kind}\ndata: {json.dumps(row_json(row))}\n\n"
