"""The hash chain of the ledger: what a row's SHA-256 covers, and the check that no row was changed or lost.

* A row's hash covers every column of the row, `previous` included, so each row vouches for all before it.
* Rows are numbered 1, 2, … without a gap, and the first row's `previous` is 64 zeros.
* The oldest rows may have been moved to archives. The newest row of kind `archive` is then the anchor: the rows
  that are here follow the one that it names, and vouch for it in turn.
* The chain alone cannot show that its newest rows were cut off; so the check also asks that every turn that ended,
  and every signal, lesson and step in the tables, has its row. What is older than the newest row that was
  archived may have it there.
* What it finds is damage and careless edits. Who can write the file can also make a new chain: whoever must
  exclude that keeps `Verified.head` elsewhere and compares.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Text, and_, cast, exists, func, select, true, type_coerce
from sqlalchemy.orm import Session

from store.tables import LedgerTable, LessonTable, SignalTable, StepTable, TurnTable
from store.words import LedgerKind

GENESIS = "0" * 64
"""The `previous` of the first row."""

BATCH_ROWS = 1_000
"""Rows read at a time: a ledger of millions is checked in a few megabytes."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What the check found: `bad` is the seq of the first row wrong or missing, and `why` says how.

    `rows` were checked and found right; those up to `archived` were not here to be checked.
    """

    rows: int
    head: str
    bad: int | None = None
    why: str | None = None
    archived: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The last row that was archived, the file that ends in it and the file's SHA-256; the body of an `archive`.

    `newest_at_us` is the latest time of any archived row.
    """

    first_seq: int
    through_seq: int
    through_sha: str
    newest_at_us: int
    file: str
    file_sha256: str

    @property
    def seq(self) -> int:
        """The last archived row's number."""
        return self.through_seq

    def body(self) -> dict[str, int | str]:
        """The anchor as a ledger row's body."""
        return asdict(self)


class RawRow(NamedTuple):
    """A row as it lies in the database, so that one that cannot be decoded is reported, not raised."""

    seq: int
    at_us: int
    kind: str
    agent: str
    context: str | None
    code: str | None
    subject: str
    body: str
    previous: str
    sha: str


@dataclass(slots=True)
class Chain:
    """A chain as far as it was followed: its last row's number and hash, and how many rows were right."""

    seq: int = 0
    head: str = GENESIS
    rows: int = 0

    def follow(self, rows: Iterable[RawRow]) -> str | None:
        """Go on with these rows; what is wrong with the first that is wrong."""
        for row in rows:
            why = self._fault(row)
            if why is not None:
                return why
            self.seq, self.head, self.rows = row.seq, row.sha, self.rows + 1
        return None

    def _fault(self, row: RawRow) -> str | None:
        seq = self.seq + 1
        if row.seq != seq:
            return f"row {seq} is missing: the next one there is {row.seq}"
        if row.previous != self.head:
            return f"row {seq} does not follow the row before it"
        try:
            body = json.loads(row.body)
        except ValueError:
            return f"row {seq} was changed: its body is no longer JSON"
        if row_sha({**row._asdict(), "body": body}) != row.sha:
            return f"row {seq} was changed: its content has another hash"
        return None


_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
)


def canonical(value: object) -> str:
    """One spelling for equal values: keys sorted, no spaces, floats by `repr`, no NaN and no infinity."""
    return _CANONICAL.encode(value)


def row_sha(columns: Mapping[str, object]) -> str:
    """The SHA-256 of a ledger row's columns, all but `sha` itself."""
    covered = {name: value for name, value in columns.items() if name != "sha"}
    # surrogatepass: JSON from a client may hold half of a surrogate pair, and that is hashed like the rest.
    return hashlib.sha256(canonical(covered).encode("utf-8", "surrogatepass")).hexdigest()


def verify(session: Session) -> Verified:
    """Read the ledger from its first row on, and say whether all of it is there as it was written."""
    anchor = anchor_of(session)
    chain = chain_here(session, anchor)
    return verify_onward(session, chain, anchor, archived=chain.seq)


def verify_onward(session: Session, chain: Chain, anchor: Anchor | None, *, archived: int) -> Verified:
    """Go on with the rows that are here, where the chain has come to the anchor."""
    why = chain.follow(raw_rows(session)) or _untold(session, anchor)
    bad = None if why is None else chain.seq + 1
    return Verified(chain.rows, chain.head, bad, why, archived)


def anchor_of(session: Session) -> Anchor | None:
    """The newest archive's, as its row says; None when nothing was archived or the row cannot be read."""
    archives = select(cast(LedgerTable.body, Text)).where(LedgerTable.kind == LedgerKind.ARCHIVE)
    body = session.scalar(archives.order_by(LedgerTable.seq.desc()).limit(1))
    try:
        return None if body is None else Anchor(**json.loads(body))
    except (ValueError, TypeError):
        return None


def chain_here(session: Session, anchor: Anchor | None) -> Chain:
    """The chain as it is before the first row that is here.

    If the archive's row cannot be read, the first row is taken at its word: then that one will be found wrong.
    """
    if anchor is not None:
        return Chain(anchor.seq, anchor.through_sha)
    first = session.execute(
        select(LedgerTable.seq, LedgerTable.previous).order_by(LedgerTable.seq).limit(1)
    ).first()
    damaged = exists().where(LedgerTable.kind == LedgerKind.ARCHIVE)
    if first is None or not session.scalar(select(damaged)):
        return Chain()
    return Chain(first.seq - 1, first.previous)


def raw_rows(session: Session, *, through: int | None = None) -> Iterator[RawRow]:
    """The rows that are here, in order, a few at a time: all, or those up to that number."""
    kind, body = type_coerce(LedgerTable.kind, Text), cast(LedgerTable.body, Text)
    columns = [
        kind if name == "kind" else body if name == "body" else getattr(LedgerTable, name)
        for name in RawRow._fields
    ]
    query = select(*columns).order_by(LedgerTable.seq)
    query = query if through is None else query.where(LedgerTable.seq <= through)
    for row in session.execute(query.execution_options(yield_per=BATCH_ROWS)):
        yield RawRow(*row)


def _untold(session: Session, anchor: Anchor | None) -> str | None:
    """A row of the other tables that the ledger has no row of."""
    seq, at_us = (0, 0) if anchor is None else (anchor.seq, anchor.newest_at_us)
    ended = TurnTable.finish_reason.is_not(None)  # an open turn is told of when it ends
    for kind, table, due, later in (
        (LedgerKind.TURN, TurnTable, ended, TurnTable.created_at_us > at_us),
        (LedgerKind.SIGNAL, SignalTable, true(), SignalTable.arrival > seq),
        (LedgerKind.LESSON, LessonTable, true(), LessonTable.planned_at_us > at_us),
        (LedgerKind.STEP, StepTable, true(), StepTable.created_at_us > at_us),
    ):
        told = exists().where(LedgerTable.subject == table.id, LedgerTable.kind == kind)
        here: ColumnElement[bool] = true() if anchor is None else later
        identity = session.scalar(select(func.min(table.id)).where(and_(due, here), ~told))
        if identity is not None:
            return f"the row of {kind} {identity!r} is missing"
    return None
