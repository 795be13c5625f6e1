"""The hash chain of the ledger: what a row's SHA-256 covers, and the check that no row was changed or lost.

* A row's hash covers every column of the row, `previous` included, so each row vouches for all before it.
* Rows are numbered 1, 2, … without a gap, and the first row's `previous` is 64 zeros.
* The chain alone cannot show that its newest rows were cut off; so the check also asks that every turn
  that ended, and every signal, lesson and step in the tables has its row.
* What it finds is damage and careless edits. Who can write the file can also make a new chain: whoever must
  exclude that keeps `Verified.head` elsewhere and compares.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Text, cast, exists, func, select, true, type_coerce
from sqlalchemy.orm import Session

from store.tables import LedgerTable, LessonTable, SignalTable, StepTable, TurnTable
from store.words import LedgerKind

GENESIS = "0" * 64
"""The `previous` of the first row."""

BATCH_ROWS = 1_000
"""Rows read at a time: a ledger of millions is checked in a few megabytes."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What the check found: `bad` is the seq of the first row wrong or missing, and `why` says how."""

    rows: int
    head: str
    bad: int | None = None
    why: str | None = None


class _RawRow(NamedTuple):
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


def canonical(value: object) -> str:
    """One spelling for equal values: keys sorted, no spaces, floats by `repr`, no NaN and no infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def row_sha(columns: Mapping[str, object]) -> str:
    """The SHA-256 of a ledger row's columns, all but `sha` itself."""
    covered = {name: value for name, value in columns.items() if name != "sha"}
    # surrogatepass: JSON from a client may hold half of a surrogate pair, and that is hashed like the rest.
    return hashlib.sha256(canonical(covered).encode("utf-8", "surrogatepass")).hexdigest()


def verify(session: Session) -> Verified:
    """Read the ledger from its first row on, and say whether all of it is there as it was written."""
    rows, head = 0, GENESIS
    for row in _raw_rows(session):
        why = _fault(row, seq=rows + 1, previous=head)
        if why is not None:
            return Verified(rows, head, rows + 1, why)
        rows, head = row.seq, row.sha
    untold = _untold(session)
    if untold is not None:
        return Verified(rows, head, rows + 1, untold)
    return Verified(rows, head)


def _raw_rows(session: Session) -> Iterator[_RawRow]:
    kind, body = type_coerce(LedgerTable.kind, Text), cast(LedgerTable.body, Text)
    columns = [
        kind if name == "kind" else body if name == "body" else getattr(LedgerTable, name)
        for name in _RawRow._fields
    ]
    for row in session.execute(select(*columns).order_by(LedgerTable.seq).execution_options(yield_per=BATCH_ROWS)):
        yield _RawRow(*row)


def _fault(row: _RawRow, *, seq: int, previous: str) -> str | None:
    if row.seq != seq:
        return f"row {seq} is missing: the next one there is {row.seq}"
    if row.previous != previous:
        return f"row {seq} does not follow the row before it"
    try:
        body = json.loads(row.body)
    except ValueError:
        return f"row {seq} was changed: its body is no longer JSON"
    if row_sha({**row._asdict(), "body": body}) != row.sha:
        return f"row {seq} was changed: its content has another hash"
    return None


def _untold(session: Session) -> str | None:
    """A row of the other tables that the ledger has no row of."""
    for kind, table, due in (
        (LedgerKind.TURN, TurnTable, TurnTable.finish_reason.is_not(None)),  # an open turn is told when it ends
        (LedgerKind.SIGNAL, SignalTable, true()),
        (LedgerKind.LESSON, LessonTable, true()),
        (LedgerKind.STEP, StepTable, true()),
    ):
        told = exists().where(LedgerTable.subject == table.id, LedgerTable.kind == kind)
        identity = session.scalar(select(func.min(table.id)).where(due, ~told))
        if identity is not None:
            return f"the row of {kind} {identity!r} is missing"
    return None
