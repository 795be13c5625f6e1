"""Reshaping: a lesson that waits takes in what another signal asks for, gives it up again, or is freed.

* All of it happens before the ride: a lesson that rides is what it is.
* A lesson that is taken in by another ends, and its signals make the other.
"""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from store import ledger
from store.columns import JsonValue
from store.lessons import weigh
from store.records import Entry, Lesson, RefusedSignal
from store.rows import lesson_in, signal_in
from store.tables import LessonSignalTable, LessonTable, SignalTable
from store.words import LedgerKind, LessonState, Role, SignalState

TAKEN_IN = "superseded"
"""The code of a lesson whose labels are learned with another's."""


def widen_lesson(
    session: Session,
    lesson: Lesson,
    *,
    makers: Sequence[str],
    takes_in: Sequence[str],
    weighed_by: Sequence[str] = (),
) -> None:
    """Give a lesson the rows of ``lesson``, which new signals, weighed by others, and other lessons make too.

    Raises `Unknown`, or `WrongState` where a lesson does not wait, or a signal makes one already.
    """
    row = _reshape(session, lesson)
    for maker in makers:
        made_of = signal_in(session, maker, [SignalState.RECEIVED])
        made_of.state, made_of.lesson = SignalState.PLANNED, lesson.id
        session.add(LessonSignalTable(lesson=lesson.id, signal=maker, role=Role.MAKES))
    for signal in weighed_by:
        weigh(session, lesson.id, signal)
    for other in takes_in:
        _take_in(session, lesson_in(session, other, [LessonState.PLANNED]), by=lesson.id)
    session.flush()
    _tell(session, row, makers=[*makers], takes_in=[*takes_in], rows=len(lesson.tokens))


def give_up_signal(session: Session, lesson: Lesson, why: RefusedSignal) -> None:
    """Refuse one of several signals that make a lesson, which has the rows of ``lesson`` from now on.

    Raises `Unknown`, or `WrongState` where the lesson does not wait.
    """
    row = _reshape(session, lesson)
    signal = signal_in(session, why.id, [SignalState.PLANNED])
    signal.state, signal.lesson = SignalState.REFUSED, None
    signal.code, signal.message, signal.position = why.code, why.message, why.position
    link = session.get(LessonSignalTable, (lesson.id, why.id))
    assert link is not None, f"signal {why.id} makes no lesson {lesson.id}"
    session.delete(link)
    session.flush()
    told: dict[str, JsonValue] = {"of": "signal", "lesson": lesson.id, "message": why.message}
    told["position"] = why.position
    kind, agent, context = LedgerKind.REFUSAL, row.agent, row.context
    entry = Entry(kind=kind, agent=agent, context=context, subject=why.id, code=why.code, body=told)
    ledger.append(session, entry)


def free_lesson(session: Session, lesson_id: str, *, verdict: str) -> None:
    """Let a lesson that waited for a verdict ride. Raises `Unknown`, or `WrongState` where it does not wait."""
    row = lesson_in(session, lesson_id, [LessonState.PLANNED])
    session.merge(LessonSignalTable(lesson=lesson_id, signal=verdict, role=Role.FREES))
    session.flush()
    _tell(session, row, freed_by=verdict)


def _reshape(session: Session, lesson: Lesson) -> LessonTable:
    row = lesson_in(session, lesson.id, [LessonState.PLANNED])
    row.prefix_token_count = lesson.prefix_token_count
    row.tokens, row.targets, row.weights = lesson.tokens, lesson.targets, lesson.weights
    return row


def _take_in(session: Session, row: LessonTable, *, by: str) -> None:
    for link in session.scalars(select(LessonSignalTable).where(LessonSignalTable.lesson == row.id)).all():
        session.merge(LessonSignalTable(lesson=by, signal=link.signal, role=link.role))  # both may name a verdict
        session.delete(link)
    session.execute(update(SignalTable).where(SignalTable.lesson == row.id).values(lesson=by))
    row.state, row.code = LessonState.REFUSED, TAKEN_IN
    row.message = f"Its labels are learned with those of lesson {by}, which they overlap."
    _tell(session, row, taken_in_by=by)


def _tell(session: Session, row: LessonTable, **body: JsonValue) -> None:
    told: dict[str, JsonValue] = {"state": row.state, **body}
    entry = Entry(kind=LedgerKind.LESSON, agent=row.agent, context=row.context, subject=row.id, body=told)
    ledger.append(session, entry)
