"""Opening the database: SQLite in a file by default, PostgreSQL by URL, one code path for both.

* One connection writes, and each of its transactions takes the write lock at its beginning (`BEGIN IMMEDIATE`, on
  PostgreSQL an advisory lock), so that it never fails half-way for having read first, and the chain is one.
* Other connections read, and cannot write. A reader sees one state of the database from its first query on.
* Whoever can write holds the writer lock: a second writer is refused when it opens, not when it writes. Writers of
  PostgreSQL that share it write one after another; each agent belongs to one of them (`store/leases.py`).
* A database at another revision is not opened. An empty one is brought to the newest when that was asked for.
* What was committed stays: SQLite syncs the log at every commit (`synchronous=FULL`).
"""

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
from store.leases import Leases
from store.lock import WriterLock

READERS = 4
"""Reading connections: a page, a stream and a check can run side by side, and each costs a file handle."""

BUSY_TIMEOUT_MS = 5_000
"""How long a statement waits for SQLite's lock: a checkpoint takes milliseconds, a stuck process shows."""

OPEN_KEY, WRITE_KEY = 0x7269_6465, 0x7269_6466
"""PostgreSQL's advisory locks: of writers, which share it, against an upgrade, which does not; and of one
transaction that writes. Any numbers that no other program uses in the same database."""


_CLASHES = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: nothing was changed, and the same again may well pass."""


class Database:
    """An open database: `write()` and `read()` give sessions, each one transaction."""

    def __init__(self, *, writer: Engine | None, readers: Engine, lock: WriterLock | None) -> None:
        self._writer = writer
        self._readers = readers
        self._lock = lock
        self.leases = Leases(shared=readers.dialect.name == "postgresql")
        if writer is not None and self.leases.shared:
            event.listen(writer, "connect", lambda connection, _entry: self.leases.retake(connection))

    @classmethod
    def open(
        cls, target: str | Path, *, create: bool = False, read_only: bool = False, shared: bool = False
    ) -> Self:
        """Open a database by its file or URL.

        `create` makes the file and the tables of a new one; `read_only` leaves the writer's place to others;
        `shared` lets others write that share it too, to PostgreSQL only.
        Raises `NoDatabase`, `WrongRevision`, `AlreadyOpen`, `UnsupportedUrl`, or `StorageFailed`.
        """
        url = _url_of(target)
        _check_place(url, create=create and not read_only)
        writer = None if read_only else _engine(url, writes=True, alone=not shared)
        readers = _engine(url, writes=False)
        database = cls(writer=writer, readers=readers, lock=None if read_only else _lock_of(url))
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
        with _failures(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads, and sees one state throughout."""
        with _failures(), Session(self._readers, expire_on_commit=False) as session, session.begin():
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


def upgrade_database(target: str | Path) -> str:
    """Bring a database that no one has open to the newest revision, and give that revision."""
    url = _url_of(target)
    _check_place(url, create=False)
    engine, lock = _engine(url, writes=True, alone=True), _lock_of(url)
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
    found = revisions.current(engine)
    if found is None and create and revisions.is_empty(engine):
        revisions.upgrade(engine)
        return
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


def _engine(url: URL, *, writes: bool, alone: bool = False) -> Engine:
    """An engine whose pool holds one connection when it writes: the pool itself then keeps writers in line.

    `alone`: no other may have the database open for writing.
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
        _prepare_postgresql(engine, writes=writes, alone=alone)
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


def _prepare_postgresql(engine: Engine, *, writes: bool, alone: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        if writes:
            _require_open(cursor, alone=alone)
        else:
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        connection.commit()  # what was set, and the lock, outlive this transaction
        cursor.close()

    if writes:

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_KEY})")


def _require_open(cursor: DBAPICursor, *, alone: bool) -> None:
    """Take the lock that keeps an upgrade and the writers apart; it lasts as long as the connection."""
    cursor.execute(f"SELECT pg_try_advisory_lock{'' if alone else '_shared'}({OPEN_KEY})")
    row = cursor.fetchone()
    if row is not None and row[0]:
        return
    if alone:
        raise AlreadyOpen("the ledger is open for writing in another process: stop that one first")
    raise AlreadyOpen("another process has the ledger for itself: stop that one first")


@contextmanager
def _failures() -> Iterator[None]:
    """The driver's errors, as ours."""
    try:
        yield
    except DBAPIError as error:
        kind = Clashed if getattr(error.orig, "sqlstate", None) in _CLASHES else StorageFailed
        raise kind(f"the database failed: {error.orig}") from error
