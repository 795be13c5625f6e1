"""The ledger: appending to it, and reading it a page at a time.

* Rows are only ever added, and only inside the transaction that makes the change they tell of.
* Rows are numbered 1, 2, … by the one writer; a page's cursor is the last seq on it, so a page is the same
  whatever was appended since.
* A row's time is never before the time of the row before it, so that a span of time is a span of rows, found at
  once. Only a clock that had been wrong by more than `MOST_BACK_US` is followed when it is set back: what it
  stamped wrong is then in no span but its own.
* A code is a refusal's and no other's, so that no index needs both.
* A session knows the rows that were appended in it, so that they can be told of once they are committed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, func, select
from sqlalchemy.orm import Session

from store.chain import GENESIS, anchor_of, canonical, row_sha
from store.clock import now_us
from store.errors import Archived, BadPage, Unknown
from store.records import Entry, LedgerRow
from store.rows import columns_of, insert_all, record_of
from store.tables import LedgerTable
from store.words import LedgerKind

MOST_ROWS = 1_000
"""Rows of the longest page: a page is held in memory whole, on both ends."""


END = 2**63 - 1
"""A number that no row has."""

MOST_BACK_US = 3_600_000_000
"""How far a clock may be set back and be waited for: more than it is ever adjusted, less than a wrong date."""


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


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Numbers of rows: those after one and before another."""

    after: int = 0
    before: int = END

    def cut(self, cursor: int | None, *, newest: bool) -> "RowSpan":
        """What is left of it for pages that have come to that row."""
        if cursor is None:
            return self
        if newest:
            return replace(self, before=min(self.before, cursor))
        return replace(self, after=max(self.after, cursor))


_APPENDED = "appended ledger rows"


def append(session: Session, entry: Entry) -> LedgerRow:
    """Add one row after the last."""
    return append_all(session, [entry])[0]


def append_all(session: Session, entries: Sequence[Entry], *, at_us: int | None = None) -> list[LedgerRow]:
    """Add rows after the last, in order, all of one time: now, unless another is given, or the last row's.

    Raises `ValueError` when a body holds NaN or an infinity.
    """
    last = session.execute(
        select(LedgerTable.seq, LedgerTable.sha, LedgerTable.at_us).order_by(LedgerTable.seq.desc()).limit(1)
    ).one_or_none()
    seq, previous = (0, GENESIS) if last is None else (last.seq, last.sha)
    at_us = now_us() if at_us is None else at_us
    if last is not None and at_us < last.at_us <= at_us + MOST_BACK_US:
        at_us = last.at_us
    rows: list[LedgerRow] = []
    for number, entry in enumerate(entries, start=seq + 1):
        rows.append(_chained(entry, seq=number, at_us=at_us, previous=previous))
        previous = rows[-1].sha
    if rows:
        insert_all(session, LedgerTable, [columns_of(row) for row in rows])
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
    """The row of that number. Raises `Unknown` when there is none, `Archived` when it is no longer here."""
    row = session.get(LedgerTable, seq)
    if row is None:
        anchor = anchor_of(session)
        if anchor is not None and 0 < seq <= anchor.seq:
            raise Archived(seq, through=anchor.seq)
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
    span = _rows_of_time(session, filter_).cut(cursor, newest=newest)
    query = page_query(filter_, span, limit=limit + 1, newest=newest)
    found = [record_of(LedgerRow, row) for row in session.execute(query)]
    rows = tuple(found[:limit])
    return Page(rows, rows[-1].seq if len(found) > limit else None)


def page_query(filter_: Filter, span: RowSpan, *, limit: int, newest: bool) -> Select[*tuple[Any, ...]]:
    """What a page asks the database: without the ORM, as a page is read and never changed."""
    seq = LedgerTable.seq
    query = select(*(getattr(LedgerTable, field.name) for field in fields(LedgerRow)))
    wanted = query.where(*_equal(filter_), *_in_time(filter_), seq > span.after, seq < span.before)
    return wanted.order_by(seq.desc() if newest else seq).limit(limit)


def page_onward(session: Session, filter_: Filter, *, cursor: int, limit: int) -> Page:
    """As `page`, for whoever goes on with rows to come: the next cursor is where to go on, on the last page too.

    There it is the ledger's last row, so that what the filter holds back is not read again.
    """
    found = page(session, filter_, cursor=cursor, limit=limit)
    return found if found.next_cursor is not None else replace(found, next_cursor=max(cursor, last_seq(session)))


def _chained(entry: Entry, *, seq: int, at_us: int, previous: str) -> LedgerRow:
    columns = {
        "seq": seq,
        "at_us": at_us,
        "kind": entry.kind,
        "agent": entry.agent,
        "context": entry.context,
        "code": entry.code,
        "subject": entry.subject,
        "body": json.loads(canonical(entry.body)),  # hashed as it will be read: lists for tuples, text for keys
        "previous": previous,
    }
    return LedgerRow(**columns, sha=row_sha(columns))


def first_at(at_us: int) -> ScalarSelect[int]:
    """The first row of that time or later; NULL when there is none."""
    rows = select(LedgerTable.seq).where(LedgerTable.at_us >= at_us)
    return rows.order_by(LedgerTable.at_us, LedgerTable.seq).limit(1).scalar_subquery()


def _rows_of_time(session: Session, wanted: Filter) -> RowSpan:
    """Where the rows of the time that is wanted are."""
    after, before = 0, END
    if wanted.since_us is not None:
        first = session.scalar(select(first_at(wanted.since_us)))
        after = END if first is None else first - 1
    if wanted.until_us is not None:
        before = session.scalar(select(first_at(wanted.until_us))) or END
    return RowSpan(after, before)


def _equal(wanted: Filter) -> list[ColumnElement[bool]]:
    kind = LedgerKind.REFUSAL if wanted.code is not None and wanted.kind is None else wanted.kind
    return [
        column == value
        for column, value in (
            (LedgerTable.agent, wanted.agent),
            (LedgerTable.context, wanted.context),
            (LedgerTable.kind, kind),
            (LedgerTable.code, wanted.code),
        )
        if value is not None
    ]


def _in_time(wanted: Filter) -> list[ColumnElement[bool]]:
    since = [] if wanted.since_us is None else [LedgerTable.at_us >= wanted.since_us]
    return since if wanted.until_us is None else [*since, LedgerTable.at_us < wanted.until_us]
