"""The store for asyncio: operations run on threads of its own, so the event loop never waits for a disk.

* One thread writes, one transaction at a time, in the order asked; an awaited write is committed.
* Cancelling the task that awaits an operation does not stop the operation: ask again with the same id.
* Rows appended to the ledger are told of once they are committed, in their order, to whoever asked for it; where
  other lanes write too, theirs among them, as soon as this one writes or looks (`catch_up`).
* One that gave way to another program's transaction is done again.
* Closing lets what was asked for end first, and can be done twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy.orm import Session

from store import ledger
from store.database import READERS, Database
from store.errors import Clashed, Closed, Elsewhere, StorageFailed
from store.leases import Leases
from store.records import LedgerRow

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Tell = Callable[[Sequence[LedgerRow]], None]

TRIES = 5
"""How often an operation is tried that gives way to another program's: two in a row is rare already."""


class Store:
    """An open database, written by one thread and read by a few."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="store-reader")
        self._listeners: list[Tell] = []
        self._others: list[Tell] = []
        self._told = _last_seq(database) if database.leases.shared else 0
        self._closed = False

    @classmethod
    def open(
        cls, target: str | Path, *, create: bool = False, read_only: bool = False, lane: str | None = None
    ) -> Self:
        """Open a database by its file or URL; `lane` and what it raises are as `Database.open` says."""
        return cls(Database.open(target, create=create, read_only=read_only, lane=lane))

    @property
    def leases(self) -> Leases:
        """The agents that belong to this lane."""
        return self._database.leases

    async def write(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a transaction of its own, and give its answer once that is committed.

        An agent that it finds not to belong to this lane any more is dropped from `leases`.
        """

        def run() -> T:
            try:
                with self._database.write() as session:
                    answer = operation(session, *args, **kwargs)
            except Elsewhere as error:
                self.leases.drop([error.agent])
                raise
            if appended := ledger.appended_in(session):
                try:
                    self._tell(appended)
                except StorageFailed:  # they are committed, and told with what comes next
                    logger.exception("what other lanes appended cannot be read now")
            return answer

        return await self._run(self._writer, run)

    async def read(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, beside the writer."""

        def run() -> T:
            with self._database.read() as session:
                return operation(session, *args, **kwargs)

        return await self._run(self._readers, run)

    async def catch_up(self) -> None:
        """Tell what other lanes have appended since. Raises `StorageFailed`."""
        await self._run(self._writer, lambda: self._tell([]))

    async def tend(self, operation: Callable[[Database], T]) -> T:
        """Run what the database itself is asked for, in the writer's place."""
        return await self._run(self._writer, lambda: operation(self._database))

    def on_append(self, tell: Tell) -> None:
        """Have rows that are appended told from now on. It is called on the writer's thread: be quick."""
        self._listeners.append(tell)

    def on_others(self, tell: Tell) -> None:
        """Have rows that other lanes append told from now on, likewise."""
        self._others.append(tell)

    def close(self) -> None:
        """Let what was asked for end, and close the database. Blocks; a second call does nothing."""
        self._closed = True
        for threads in (self._writer, self._readers):
            threads.shutdown(wait=True)
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, own: Sequence[LedgerRow]) -> None:
        """Tell of rows, those that other lanes have appended before them first."""
        others: list[LedgerRow] = []
        if self._database.leases.shared:
            others = self._appended_by_others(before=own[0].seq if own else None)
            self._told = own[-1].seq if own else others[-1].seq if others else self._told
        for listeners, rows in ((self._others, others), (self._listeners, [*others, *own])):
            for tell in listeners if rows else ():
                tell(rows)

    def _appended_by_others(self, *, before: int | None) -> list[LedgerRow]:
        """Rows from the last one told on."""
        found: list[LedgerRow] = []
        if before == self._told + 1:
            return found
        with self._database.read() as session:
            cursor: int | None = self._told
            while cursor is not None:
                page = ledger.page(session, cursor=cursor, limit=ledger.MOST_ROWS)
                found += [row for row in page.rows if before is None or row.seq < before]
                cursor = page.next_cursor
        return found

    async def _run(self, threads: ThreadPoolExecutor, operation: Callable[[], T]) -> T:
        if self._closed:
            raise Closed("the store was closed: open it again to go on")

        def run() -> T:
            for _ in range(TRIES - 1):
                with suppress(Clashed):
                    return operation()
            return operation()

        return await asyncio.get_running_loop().run_in_executor(threads, run)


def _last_seq(database: Database) -> int:
    with database.read() as session:
        return ledger.last_seq(session)
