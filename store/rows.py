"""Between rows and records, by the names of their fields; and a row by its id, or the error that says why.

* A record's fields are named as the columns they go to, so neither is spelled out again.
* Values are passed on, never copied: token ids can be long.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table, insert
from sqlalchemy.orm import Session

from store import leases
from store.errors import Unknown, WrongState
from store.tables import Base, LessonTable, SignalTable
from store.words import LessonState, SignalState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T", bound=Base)


def columns_of(record: "DataclassInstance") -> dict[str, Any]:
    """A record's fields as columns, by name."""
    return {name: getattr(record, name) for name in _names(type(record))}


def insert_all(session: Session, kind: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows in one statement, by their columns alone: as objects many cost as much again as the statement."""
    table = kind.__table__
    assert isinstance(table, Table), f"{kind} is no table"
    session.execute(insert(table), rows)


def record_of(kind: type[R], row: object, **others: object) -> R:
    """The record of that kind that a row holds; `others` are fields that are not columns of it."""
    return kind(**{name: others[name] if name in others else getattr(row, name) for name in _names(kind)})


@cache
def _names(kind: type["DataclassInstance"]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def existing(session: Session, table: type[T], identity: str) -> T:
    """The row of that id. Raises `Unknown` when there is none."""
    row = session.get(table, identity)
    if row is None:
        raise Unknown(table.__tablename__.removesuffix("s"), identity)
    return row


def signal_in(session: Session, identity: str, allowed: Collection[SignalState]) -> SignalTable:
    """The signal of that id. Raises `Unknown`, or `WrongState` when it is in a state not allowed."""
    row = existing(session, SignalTable, identity)
    if row.state not in allowed:
        raise WrongState("signal", identity, state=row.state, allowed=allowed)
    return row


def lesson_in(session: Session, identity: str, allowed: Collection[LessonState]) -> LessonTable:
    """The lesson of that id, to be changed.

    Raises `Unknown`, `WrongState` when it is in a state not allowed, or `Elsewhere` when its agent is not this
    lane's.
    """
    row = existing(session, LessonTable, identity)
    leases.require(session, row.agent)
    if row.state not in allowed:
        raise WrongState("lesson", identity, state=row.state, allowed=allowed)
    return row
