"""The ledger: appending to it, and reading it a page at a time.

* Rows are only ever added, and only inside the transaction that makes the change they tell of.
* Rows are numbered 1, 2, … by the one writer; a page's cursor is the last seq on it, so a page is the same
  whatever was appended since.
* A session knows the rows that were appended in it, so that they can be told of once they are committed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Select, func, insert, select
from sqlalchemy.orm import Session

from store.chain import GENESIS, canonical, row_sha
from store.clock import now_us
from store.errors import BadPage, Unknown
from store.records import Entry, LedgerRow
from store.rows import columns_of, record_of
from store.tables import LedgerTable
from store.words import LedgerKind

MOST_ROWS = 1_000
"""Rows of the longest page: a page is held in memory whole, on both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rows to read; None lets everything through. `since_us` is included and `until_us` is not."""

    agent: str | None = None
    context: str | None = None
    kind: LedgerKind | None = None
    code: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def lets_through(self, row: LedgerRow) -> bool:
        """Is the row one of those? What a page does in SQL, for rows that are at hand."""
        wanted = (self.agent, self.context, self.kind, self.code)
        own = (row.agent, row.context, row.kind, row.code)
        if any(one is not None and one != other for one, other in zip(wanted, own, strict=True)):
            return False
        begun = self.since_us is None or self.since_us <= row.at_us
        return begun and (self.until_us is None or row.at_us < self.until_us)


EVERYTHING = Filter()


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, and the cursor of the next page; None when this is the last."""

    rows: tuple[LedgerRow, ...]
    next_cursor: int | None


_APPENDED = "appended ledger rows"


def append(session: Session, entry: Entry) -> LedgerRow:
    """Add one row after the last."""
    return append_all(session, [entry])[0]


def append_all(session: Session, entries: Sequence[Entry], *, at_us: int | None = None) -> list[LedgerRow]:
    """Add rows after the last, in order, all of one time: now, unless another is given.

    Raises `ValueError` when a body holds NaN or an infinity.
    """
    last = session.execute(
        select(LedgerTable.seq, LedgerTable.sha).order_by(LedgerTable.seq.desc()).limit(1)
    ).one_or_none()
    seq, previous = (0, GENESIS) if last is None else (last.seq, last.sha)
    at_us = now_us() if at_us is None else at_us
    rows: list[LedgerRow] = []
    for number, entry in enumerate(entries, start=seq + 1):
        rows.append(_chained(entry, seq=number, at_us=at_us, previous=previous))
        previous = rows[-1].sha
    if rows:
        session.execute(insert(LedgerTable), [columns_of(row) for row in rows])
        session.info.setdefault(_APPENDED, []).extend(rows)
    return rows


def appended_in(session: Session) -> Sequence[LedgerRow]:
    """The rows that were appended in this session, in order."""
    rows: list[LedgerRow] = session.info.get(_APPENDED, [])
    return rows


def last_seq(session: Session) -> int:
    """The number of the last row; 0 when there is none."""
    return session.scalar(select(func.max(LedgerTable.seq))) or 0


def row_of(session: Session, seq: int) -> LedgerRow:
    """The row of that number. Raises `Unknown` when there is none."""
    row = session.get(LedgerTable, seq)
    if row is None:
        raise Unknown("ledger row", str(seq))
    return record_of(LedgerRow, row)


def page(
    session: Session,
    filter_: Filter = EVERYTHING,
    *,
    cursor: int | None = None,
    limit: int = 100,
    newest: bool = False,
) -> Page:
    """The rows after `cursor` (from the first one when None), oldest first, or newest first when asked.

    Raises `BadPage` when the limit is outside 1 to `MOST_ROWS`.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise BadPage(f"a page of {limit} rows was asked for: ask for 1 to {MOST_ROWS}")
    seq = LedgerTable.seq
    query = _filtered(filter_).order_by(seq.desc() if newest else seq).limit(limit + 1)
    if cursor is not None:
        query = query.where(seq < cursor if newest else seq > cursor)
    found = [record_of(LedgerRow, row) for row in session.scalars(query)]
    rows = tuple(found[:limit])
    return Page(rows, rows[-1].seq if len(found) > limit else None)


def page_onward(session: Session, filter_: Filter, *, cursor: int, limit: int) -> Page:
    """As `page`, for whoever goes on with rows to come: the next cursor is where to go on, on the last page too.

    There it is the ledger's last row, so that what the filter holds back is not read again.
    """
    found = page(session, filter_, cursor=cursor, limit=limit)
    return found if found.next_cursor is not None else replace(found, next_cursor=max(cursor, last_seq(session)))


def _chained(entry: Entry, *, seq: int, at_us: int, previous: str) -> LedgerRow:
    body = json.loads(canonical(entry.body))  # hashed as it will be read: lists for tuples, text for keys
    row = LedgerRow(
        seq=seq,
        at_us=at_us,
        kind=entry.kind,
        agent=entry.agent,
        context=entry.context,
        code=entry.code,
        subject=entry.subject,
        body=body,
        previous=previous,
        sha="",
    )
    return replace(row, sha=row_sha(columns_of(row)))


def _filtered(wanted: Filter) -> Select[LedgerTable]:
    query = select(LedgerTable)
    for column, value in (
        (LedgerTable.agent, wanted.agent),
        (LedgerTable.context, wanted.context),
        (LedgerTable.kind, wanted.kind),
        (LedgerTable.code, wanted.code),
    ):
        query = query if value is None else query.where(column == value)
    if wanted.since_us is not None:
        query = query.where(LedgerTable.at_us >= wanted.since_us)
    if wanted.until_us is not None:
        query = query.where(LedgerTable.at_us < wanted.until_us)
    return query
