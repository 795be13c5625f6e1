"""Lessons as a list: a page at a time, the newest first, each with what became of it.

* A page is found in one index that holds all it may be asked by; only its own lessons are read.
* The cursor is the last lesson on the page, so that a page is the same whatever was planned since.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select, tuple_
from sqlalchemy.orm import Session

from store.errors import BadPage
from store.rows import existing
from store.tables import LessonTable, StepTable
from store.words import LessonState

MOST_LESSONS = 200
"""Lessons of the longest page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lessons; None lets everything through."""

    agent: str | None = None
    context: str | None = None
    state: LessonState | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLesson:
    """A lesson and its fate, without what it teaches."""

    id: str
    agent: str
    context: str
    turn: str
    kind: str
    state: LessonState
    rows: int
    planned_at_us: int
    ridden_turn: str | None
    code: str | None
    message: str | None
    position: int | None
    step_number: int | None
    loss_before: float | None
    loss_after: float | None
    """None also where it was not measured."""


@dataclass(frozen=True, slots=True)
class LessonPage:
    """Some lessons, and the cursor of the next page; None when this is the last."""

    lessons: tuple[ListedLesson, ...]
    next_cursor: str | None


def page(session: Session, wanted: Wanted, *, cursor: str | None = None, limit: int = 50) -> LessonPage:
    """The lessons planned before the one that the cursor names, or the newest.

    Raises `BadPage` when the limit is outside 1 to `MOST_LESSONS`, `Unknown` when the cursor is no lesson.
    """
    if not 1 <= limit <= MOST_LESSONS:
        raise BadPage(f"a page of {limit} lessons was asked for: ask for 1 to {MOST_LESSONS}")
    order = (LessonTable.planned_at_us, LessonTable.id)
    newest = select(LessonTable.id).where(*_conditions(wanted)).order_by(*(each.desc() for each in order))
    if cursor is not None:
        last = existing(session, LessonTable, cursor)
        newest = newest.where(tuple_(*order) < (last.planned_at_us, last.id))
    ids = session.scalars(newest.limit(limit + 1)).all()
    return LessonPage(_listed(session, ids[:limit]), ids[limit - 1] if len(ids) > limit else None)


def listed(session: Session, lesson: str) -> ListedLesson:
    """One of them, by its id. Raises `Unknown` when there is none."""
    return _listed(session, [existing(session, LessonTable, lesson).id])[0]


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    asked = (
        (LessonTable.agent, wanted.agent),
        (LessonTable.context, wanted.context),
        (LessonTable.state, wanted.state),
        (LessonTable.code, wanted.code),
    )
    return [column == value for column, value in asked if value is not None]


def _listed(session: Session, ids: Sequence[str]) -> tuple[ListedLesson, ...]:
    learned = select(LessonTable, StepTable.number, StepTable.loss_before, StepTable.loss_after)
    rows = session.execute(
        learned.outerjoin(StepTable, StepTable.lesson == LessonTable.id).where(LessonTable.id.in_(ids))
    )
    found = {row.id: _record(row, number, before, after) for row, number, before, after in rows}
    return tuple(found[each] for each in ids)


def _record(row: LessonTable, number: int | None, before: float | None, after: float | None) -> ListedLesson:
    return ListedLesson(
        id=row.id,
        agent=row.agent,
        context=row.context,
        turn=row.turn,
        kind=row.kind,
        state=row.state,
        rows=len(row.tokens),
        planned_at_us=row.planned_at_us,
        ridden_turn=row.ridden_turn,
        code=row.code,
        message=row.message,
        position=row.position,
        step_number=number,
        loss_before=before,
        loss_after=after,
    )
