"""Where the ledger's rows come from on the command line: the file itself, or a running service.

Both answer the same questions in the same JSON, so that a command does not know which it asks.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlencode

from daemon.commands.client import TIMEOUT_SECONDS, Refused, call
from daemon.http.ledger_json import ROWS, boolean_of, filter_of, integer_of, row_json, step_json, verified_json
from daemon.http.summary_route import ASKED_BY, summary_json
from store import chain, ledger, steps
from store.database import Database
from store.summary import Span, summarise
from store.words import LedgerKind

POLL_SECONDS = 0.5
"""How often a file is looked at for new rows."""

PAGE_ROWS = 1_000

Row = dict[str, Any]
Query = Mapping[str, str]


class Source(Protocol):
    """A ledger that can be read. What is asked is written as in a URL's query."""

    def page(self, asked: Query) -> tuple[list[Row], int | None]:
        """A page of rows, and the cursor of the next."""
        ...

    def row(self, seq: int) -> Row:
        """One row."""
        ...

    def summary(self, asked: Query) -> Row:
        """What it adds up to."""
        ...

    def verified(self) -> Row:
        """What the chain's check found."""
        ...

    def follow(self, asked: Query, *, cursor: int) -> Iterator[Row]:
        """Rows after that one as they come."""
        ...


def every_row(source: Source, asked: Query) -> Iterator[Row]:
    """All rows that are asked for, oldest first, a page at a time."""
    cursor: int | None = 0
    while cursor is not None:
        rows, cursor = source.page({**asked, "cursor": str(cursor), "limit": str(PAGE_ROWS)})
        yield from rows


class FileSource:
    """The database itself, opened for reading."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, asked: Query) -> tuple[list[Row], int | None]:
        """A page of rows."""
        limit, cursor = integer_of(asked, "limit"), integer_of(asked, "cursor")
        assert limit is not None, "a command says how many"
        with self._database.read() as session:
            newest = boolean_of(asked, "newest")
            page = ledger.page(session, filter_of(asked), cursor=cursor, limit=limit, newest=newest)
        return [row_json(row) for row in page.rows], page.next_cursor

    def row(self, seq: int) -> Row:
        """One row; of a step, all that it was made of."""
        with self._database.read() as session:
            row = ledger.row_of(session, seq)
            told = row_json(row)
            if row.kind is LedgerKind.STEP:
                told["step"] = step_json(steps.step_of(session, row.subject))
        return told

    def summary(self, asked: Query) -> Row:
        """What it adds up to; there is no lane to tell of."""
        wanted = filter_of(asked, ASKED_BY)
        span = Span(agent=wanted.agent, since_us=wanted.since_us, until_us=wanted.until_us)
        with self._database.read() as session:
            return summary_json(summarise(session, span), span) | {"lane": None}

    def verified(self) -> Row:
        """What the chain's check found."""
        with self._database.read() as session:
            return verified_json(chain.verify(session))

    def follow(self, asked: Query, *, cursor: int) -> Iterator[Row]:
        """Rows as they come: whoever writes the file tells nobody else, so it is looked at again and again."""
        wanted = filter_of(asked, ROWS)
        while True:
            with self._database.read() as session:
                page = ledger.page_onward(session, wanted, cursor=cursor, limit=PAGE_ROWS)
            assert page.next_cursor is not None, "a page to go on from says where"
            cursor = page.next_cursor
            yield from map(row_json, page.rows)
            if len(page.rows) < PAGE_ROWS:
                time.sleep(POLL_SECONDS)


class ServiceSource:
    """A running service."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key

    def page(self, asked: Query) -> tuple[list[Row], int | None]:
        """A page of rows."""
        told = self._get("/ledger", asked)
        return told["rows"], told["next_cursor"]

    def row(self, seq: int) -> Row:
        """One row."""
        return self._get(f"/ledger/{seq}", {})

    def summary(self, asked: Query) -> Row:
        """What it adds up to, and the lane."""
        return self._get("/ledger/summary", asked)

    def verified(self) -> Row:
        """What the chain's check found."""
        return self._get("/ledger/verify", {})

    def follow(self, asked: Query, *, cursor: int) -> Iterator[Row]:
        """Rows as they are committed, until the service stops. Raises `Refused` when it goes away."""
        query = urlencode({**asked, "cursor": cursor})
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(f"{self._url.rstrip('/')}/ledger/stream?{query}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as lines:
                for line in lines:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))
        except (OSError, ValueError, HTTPException) as error:
            raise Refused(f"the stream of {self._url} broke off: {error}") from error

    def _get(self, path: str, asked: Query) -> Row:
        told: Row = call(self._url, path + (f"?{urlencode(asked)}" if asked else ""), key=self._key)
        return told
