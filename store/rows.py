"""Between rows and records, by the names of their fields; and a row by its id, or the error that says why.

* A record's fields are named as the columns they go to, so neither is spelled out again.
* Values are passed on, never copied: token ids can be long.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from store import leases
from store.errors import Unknown, WrongState
from store.tables import Base, LessonTable, SignalTable
from store.words import LessonState, SignalState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T", bound=Base)

MOST_PARAMETERS = 32_000
"""Of one statement: SQLite takes a few hundred more."""

_SQLITE = sqlite.dialect()


def columns_of(record: "DataclassInstance") -> dict[str, Any]:
    """A record's fields as columns, by name."""
    return {name: getattr(record, name) for name in _names(type(record))}


def insert_all(session: Session, kind: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows, at least one, that all name the same columns, in as few statements as there can be.

    Signals come by the hundred while others wait for the interpreter: as objects they would cost as much again as
    the statement, and compiled by SQLAlchemy a quarter more of all that it takes to put them. With `executemany`
    SQLite's driver would let other threads in after each row.
    """
    table = kind.__table__
    assert isinstance(table, Table), f"{kind} is no table"
    connection = session.connection()
    if connection.dialect.name != "sqlite":
        connection.execute(insert(table), rows)
        return
    names = tuple(rows[0])
    binds, most = _binds(table, names), MOST_PARAMETERS // len(names)
    for first in range(0, len(rows), most):
        some = rows[first : first + most]
        values = [row[name] if bind is None else bind(row[name]) for row in some for name, bind in binds]
        connection.exec_driver_sql(_insertion(table, names, len(some)), tuple(values))


def record_of(kind: type[R], row: object, **others: object) -> R:
    """The record of that kind that a row holds; `others` are fields that are not columns of it."""
    return kind(**{name: others[name] if name in others else getattr(row, name) for name in _names(kind)})


@cache
def _binds(table: Table, names: tuple[str, ...]) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    """The columns, and what makes of a value what SQLite's driver takes, where that is another."""
    return tuple((name, table.c[name].type.dialect_impl(_SQLITE).bind_processor(_SQLITE)) for name in names)


def _insertion(table: Table, names: tuple[str, ...], count: int) -> str:
    """The statement that adds so many rows."""
    columns, row = ", ".join(f'"{name}"' for name in names), f"({', '.join('?' * len(names))})"
    return f'INSERT INTO "{table.name}" ({columns}) VALUES {", ".join([row] * count)}'


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
