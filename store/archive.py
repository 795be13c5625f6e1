"""Archives: the ledger's oldest rows, moved to a file for good without breaking the chain.

* The file is gzip over a JSON object a line, each a row with all that its hash covers.
* Rows are checked as they are written, and the file is complete on disk before any of them leaves the ledger. A
  crash in between leaves a file that no row names, and a ledger as it was.
* They leave in one transaction, which also appends the row that says where they are: the anchor of the chain.
* A policy that an operator put stands whatever becomes of its row: where that is archived it is said again. So is
  what was exported, which forgetting may have to find.
* Numbers are never used again: that row stays in the ledger, and has a higher one.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Text, cast, delete, func, select
from sqlalchemy.orm import Session

from store import ledger
from store.chain import Anchor, Chain, RawRow, Verified, anchor_of, chain_here, raw_rows, verify_onward
from store.database import Database
from store.errors import NotArchived
from store.exports import exports_through, tell_again
from store.policies import policies, put_policy
from store.records import Entry
from store.tables import LedgerTable
from store.words import LedgerKind

NOBODY = ""
"""The agent of an archive's row: no agent has that name."""


def archive(database: Database, path: Path, *, before_us: int) -> Anchor:
    """Move every row before that time to a new file.

    Raises `NotArchived` when there is none, when the file is there already, when it cannot be written, or when the
    rows are not as they were written.
    """
    if path.exists():
        raise NotArchived(f"{path} is there already, and an archive is never written over: name another file")
    with database.read() as session:
        through = _last_before(session, before_us)
        anchor = _write(session, path, through)
    with database.write() as session:
        body = anchor.body()
        told = Entry(kind=LedgerKind.ARCHIVE, agent=NOBODY, context=None, subject=path.name, body=body)
        ledger.append(session, told)
        standing, exported = policies(session), exports_through(session, anchor.seq)
        tell_again(session, exported)
        session.execute(delete(LedgerTable).where(LedgerTable.seq <= anchor.seq))
        for agent in standing.keys() - policies(session).keys():
            put_policy(session, agent, standing[agent])
    return anchor


def verify_with(session: Session, paths: Sequence[Path]) -> Verified:
    """Check the chain from row 1 on, through the archives and the ledger, and that each file is the one named."""
    try:
        files = sorted((_File.of(path) for path in paths), key=lambda file: file.first_seq)
        chain, named, anchor = Chain(), _Named(session), anchor_of(session)
        for file in files:
            why = chain.follow(named.heard(file.rows()))
            if why is not None:
                return Verified(chain.rows, chain.head, chain.seq + 1, f"{why} (in {file.path})")
            file.through_seq = chain.seq
    except _Unreadable as error:
        return Verified(0, "", None, str(error))
    here = chain_here(session, anchor)
    if (chain.seq, chain.head) != (here.seq, here.head):
        why = f"the archives end at row {chain.seq}, and the ledger goes on after row {here.seq}: give all of them"
        return Verified(chain.rows, chain.head, chain.seq + 1, why)
    for file in files:
        if named.sha256_of(file.through_seq) != file.sha256:
            return Verified(chain.rows, chain.head, None, f"{file.path} is not the file that the ledger names")
    return verify_onward(session, chain, anchor, archived=0)


class _Unreadable(Exception):
    """A file is no archive, or is damaged."""


@dataclass(slots=True)
class _File:
    """An archive on disk."""

    path: Path
    first_seq: int
    sha256: str
    through_seq: int = 0

    @classmethod
    def of(cls, path: Path) -> "_File":
        first = next(_rows_of(path), None)
        if first is None:
            raise _Unreadable(f"{path} has no row")
        try:
            return cls(path, first.seq, _sha256(path))
        except OSError as error:
            raise _Unreadable(f"{path} cannot be read: {error}") from error

    def rows(self) -> Iterator[RawRow]:
        return _rows_of(self.path)


class _Named:
    """The files that archives' rows name, heard of as rows go by, and in the ledger."""

    def __init__(self, session: Session) -> None:
        self._sha256: dict[int, str] = {}
        bodies = select(cast(LedgerTable.body, Text)).where(LedgerTable.kind == LedgerKind.ARCHIVE)
        for body in session.scalars(bodies):
            self._take(body)

    def heard(self, rows: Iterator[RawRow]) -> Iterator[RawRow]:
        for row in rows:
            if row.kind == LedgerKind.ARCHIVE:
                self._take(row.body)
            yield row

    def sha256_of(self, through_seq: int) -> str | None:
        return self._sha256.get(through_seq)

    def _take(self, body: str) -> None:
        with suppress(ValueError, TypeError):  # a damaged row is found by its hash
            anchor = Anchor(**json.loads(body))
            self._sha256[anchor.seq] = anchor.file_sha256


def _last_before(session: Session, before_us: int) -> int:
    first, last = session.scalar(select(func.min(LedgerTable.seq))), ledger.last_seq(session)
    later = session.scalar(select(ledger.first_at(before_us)))
    through = last if later is None else later - 1
    if first is None or through < first:
        raise NotArchived("the ledger has no row before that time: nothing is to be archived")
    return through


def _write(session: Session, path: Path, through: int) -> Anchor:
    """Write the rows up to that one beside the file, make sure of them, and give the file its name."""
    aside = path.with_name(path.name + ".writing")
    try:
        chain, first, newest_at_us = _write_rows(session, aside, through)
        sha256 = _sha256(aside)
        aside.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise NotArchived(f"{path} cannot be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return Anchor(
        first_seq=first,
        through_seq=chain.seq,
        through_sha=chain.head,
        newest_at_us=newest_at_us,
        file=path.name,
        file_sha256=sha256,
    )


def _write_rows(session: Session, path: Path, through: int) -> tuple[Chain, int, int]:
    chain = chain_here(session, anchor_of(session))
    first, newest_at_us = chain.seq + 1, 0
    with path.open("wb") as raw:
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            for row in raw_rows(session, through=through):
                why = chain.follow([row])
                if why is not None:
                    raise NotArchived(f"the ledger is not as it was written: {why}; find out why before archiving")
                packed.write((json.dumps({**row._asdict(), "body": json.loads(row.body)}) + "\n").encode())
                newest_at_us = max(newest_at_us, row.at_us)
        raw.flush()
        os.fsync(raw.fileno())
    return chain, first, newest_at_us


def _rows_of(path: Path) -> Iterator[RawRow]:
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                row = json.loads(line)
                yield RawRow(**{**row, "body": json.dumps(row["body"])})
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError) as error:
        raise _Unreadable(f"{path} cannot be read as an archive: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
