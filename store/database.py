"""Opening the database: SQLite in a file by default, PostgreSQL by URL, one code path for both.

* One connection writes, and each of its transactions takes the write lock at its beginning (`BEGIN IMMEDIATE`, on
  PostgreSQL an advisory lock), so that it never fails half-way for having read first, and the chain is one.
* Other connections read, and cannot write. A reader sees one state of the database from its first query on.
* Whoever can write holds the writer lock: a second writer is refused when it opens, not when it writes. Lanes
  share PostgreSQL, each under a name of its own, and write one after another; each agent belongs to one of them
  (`store/leases.py`).
* A database at another revision is not opened. An empty one is brought to the newest when that was asked for.
* What was committed stays: SQLite syncs the log at every commit (`synchronous=FULL`).
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from store import revisions
from store.errors import AlreadyOpen, Clashed, NoDatabase, ReadOnly, StorageFailed, UnsupportedUrl, WrongRevision
from store.leases import ALONE, Leases
from store.lock import WriterLock

READERS = 4
"""Reading connections: a page, a stream and a check can run side by side, and each costs a file handle."""

BUSY_TIMEOUT_MS = 5_000
"""How long a statement waits for SQLite's lock: a checkpoint takes milliseconds, a stuck process shows."""

KEEPALIVES = "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4"
"""A host that lost its power frees its locks after 40 seconds, not after two hours."""

OPEN_KEY, WRITE_KEY = 0x7269_6465, 0x7269_6466
"""PostgreSQL's advisory locks: of writers, which share it, against an upgrade, which does not; and of one
transaction that writes. Any numbers that no other program uses in the same database."""


_CLASHES = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: nothing was changed, and the same again may well pass."""


class Database:
    """An open database: `write()` and `read()` give sessions, each one transaction."""

    def __init__(
        self, *, writer: Engine | None, readers: Engine, lock: WriterLock | None, lane: str | None
    ) -> None:
        self._writer = writer
        self._readers = readers
        self._lock = lock
        self.leases = Leases(lane or ALONE, shared=lane is not None and readers.dialect.name == "postgresql")

    @classmethod
    def open(
        cls, target: str | Path, *, create: bool = False, read_only: bool = False, lane: str | None = None
    ) -> Self:
        """Open a database by its file or URL.

        `create` makes the file and the tables of a new one; `read_only` leaves the writer's place to others;
        `lane` is a name under which to share PostgreSQL with other lanes; without one nobody else may write.
        Raises `NoDatabase`, `WrongRevision`, `AlreadyOpen`, `UnsupportedUrl`, or `StorageFailed`.
        """
        url = _url_of(target)
        _check_place(url, create=create and not read_only)
        writer = None if read_only else _engine(url, writes=True, lane=lane)
        readers = _engine(url, writes=False)
        database = cls(writer=writer, readers=readers, lock=None if read_only else _lock_of(url), lane=lane)
        try:
            with _failures():
                _check_revision(database, url, create=create and not read_only)
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that may write: committed at the end of the block, rolled back by an error."""
        if self._writer is None:
            raise ReadOnly("this database was opened for reading: open it without read_only to write")
        with _failures(), self._session(self._writer) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads, and sees one state throughout."""
        with _failures(), self._session(self._readers) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close every connection and let the next writer in; again does nothing."""
        for engine in (self._readers, self._writer):
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.release()

    @property
    def engine(self) -> Engine:
        """The engine that may do the most: the writer's, or the readers' when this is read-only."""
        return self._writer or self._readers

    def _session(self, engine: Engine) -> Session:
        return Session(engine, expire_on_commit=False, info=self.leases.as_info())


def upgrade_database(target: str | Path) -> str:
    """Bring a database that no one has open to the newest revision, and give that revision."""
    url = _url_of(target)
    _check_place(url, create=False)
    engine, lock = _engine(url, writes=True), _lock_of(url)
    try:
        with _failures():
            revisions.upgrade(engine)
    finally:
        engine.dispose()
        if lock is not None:
            lock.release()
    return revisions.head()


def _url_of(target: str | Path) -> URL:
    if isinstance(target, Path) or "://" not in target:
        return URL.create("sqlite", database=str(target))
    try:
        url = make_url(target)
    except ArgumentError as error:
        raise UnsupportedUrl(f"{target!r} is no database URL: {error}") from error
    backend = url.get_backend_name()
    if backend not in {"sqlite", "postgresql"}:
        raise UnsupportedUrl(f"{backend} was given: use a file, or a postgresql:// URL")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _check_place(url: URL, *, create: bool) -> None:
    if url.get_backend_name() != "sqlite":
        return
    if url.database in {None, "", ":memory:"}:
        raise UnsupportedUrl("SQLite in memory is lost at the end and has no second reader: name a file")
    path = Path(url.database or "")
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise NoDatabase(f"there is no ledger at {path}: start the daemon once to make it, or check the path")


def _lock_of(url: URL) -> WriterLock | None:
    return WriterLock.take(Path(url.database or "")) if url.get_backend_name() == "sqlite" else None


def _check_revision(database: Database, url: URL, *, create: bool) -> None:
    engine, needed = database.engine, revisions.head()
    if create and revisions.is_empty(engine):  # first: what another lane makes comes with a revision
        revisions.upgrade(engine)
        return
    found = revisions.current(engine)
    if found != needed:
        sqlite = url.get_backend_name() == "sqlite"
        place = f"--data-dir {Path(url.database or '').parent}" if sqlite else f"--database {url!r}"
        raise WrongRevision(
            where=url.database or "" if sqlite else repr(url),
            found=found,
            needed=needed,
            known=found is None or found in revisions.known(),
            command=f"ridealong ledger upgrade {place}",
        )


def _engine(url: URL, *, writes: bool, lane: str | None = None) -> Engine:
    """An engine whose pool holds one connection when it writes: the pool itself then keeps writers in line.

    Without a `lane` no other may have the database open for writing.
    """
    postgresql = url.get_backend_name() == "postgresql"
    try:
        # hide_parameters: an error's text must not carry what was said into a log
        engine = create_engine(
            url,
            pool_size=1 if writes else READERS,
            max_overflow=0,
            hide_parameters=True,
            pool_pre_ping=postgresql,  # a server that was restarted is connected to anew
        )
    except ModuleNotFoundError as error:
        raise UnsupportedUrl(
            f"{url!r} needs the Python package {error.name}: install ridealong[postgresql]"
        ) from error
    if postgresql:
        _prepare_postgresql(engine, writes=writes, lane=lane)
    else:
        _prepare_sqlite(engine, writes=writes)
    return engine


def _prepare_sqlite(engine: Engine, *, writes: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: `begin` below does
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if writes:
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgresql(engine: Engine, *, writes: bool, lane: str | None) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        if writes:
            cursor.execute(KEEPALIVES)
            _require_open(cursor, lane=lane)
        else:
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        connection.commit()  # what was set, and the lock, outlive this transaction
        cursor.close()

    if writes:

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_KEY})")


def _require_open(cursor: DBAPICursor, *, lane: str | None) -> None:
    """Take the locks that keep writers apart; they last as long as the connection."""
    if lane is None:
        if not _locked(cursor, "pg_try_advisory_lock", OPEN_KEY):
            raise AlreadyOpen("the ledger is open for writing in another process: stop that one first")
        return
    if not _locked(cursor, "pg_try_advisory_lock_shared", OPEN_KEY):
        raise AlreadyOpen("another process has the ledger for itself: stop that one first")
    if not _locked(cursor, "pg_try_advisory_lock", lane_key(lane)):
        raise AlreadyOpen(
            f"lane {lane} has the ledger open in another process: stop that one first. A copied data directory is "
            "a lane of its own once its file `lane` is deleted"
        )


def lane_key(lane: str) -> int:
    """The number of a lane's advisory lock, 64 bits with a sign: no two lanes' are ever the same."""
    return int.from_bytes(hashlib.sha256(f"lane {lane}".encode()).digest()[:8], "big", signed=True)


def _locked(cursor: DBAPICursor, take: str, key: int) -> bool:
    cursor.execute(f"SELECT {take}({key})")
    row = cursor.fetchone()
    return row is not None and bool(row[0])


@contextmanager
def _failures() -> Iterator[None]:
    """The driver's errors, as ours."""
    try:
        yield
    except DBAPIError as error:
        kind = Clashed if getattr(error.orig, "sqlstate", None) in _CLASHES else StorageFailed
        raise kind(f"the database failed: {error.orig}") from error
