"""The store for asyncio: operations run on threads of its own, so the event loop never waits for a disk.

* One thread writes, one transaction at a time, in the order asked; an awaited write is committed.
* Cancelling the task that awaits an operation does not stop the operation: ask again with the same id.
* Rows appended to the ledger are told of once they are committed, in their order, to whoever asked for it.
* One that gave way to another program's transaction is done again.
* Closing lets what was asked for end first, and can be done twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy.orm import Session

from store import ledger
from store.database import READERS, Database
from store.errors import Clashed, Closed
from store.records import LedgerRow

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
        self._closed = False

    @classmethod
    def open(cls, target: str | Path, *, create: bool = False, read_only: bool = False) -> Self:
        """Open a database by its file or URL; raises as `Database.open` does."""
        return cls(Database.open(target, create=create, read_only=read_only))

    async def write(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a transaction of its own, and give its answer once that is committed."""

        def run() -> T:
            with self._database.write() as session:
                answer = operation(session, *args, **kwargs)
            if appended := ledger.appended_in(session):
                for tell in self._listeners:
                    tell(appended)
            return answer

        return await self._run(self._writer, run)

    async def read(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, beside the writer."""

        def run() -> T:
            with self._database.read() as session:
                return operation(session, *args, **kwargs)

        return await self._run(self._readers, run)

    def on_append(self, tell: Tell) -> None:
        """Have the rows that `write` appends told from now on. It is called on the writer's thread: be quick."""
        self._listeners.append(tell)

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

    async def _run(self, threads: ThreadPoolExecutor, operation: Callable[[], T]) -> T:
        if self._closed:
            raise Closed("the store was closed: open it again to go on")

        def run() -> T:
            for _ in range(TRIES - 1):
                with suppress(Clashed):
                    return operation()
            return operation()

        return await asyncio.get_running_loop().run_in_executor(threads, run)
