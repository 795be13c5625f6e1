"""Lessons: planning one, its ride, its end without a step, and what a restart finds.

* A signal makes at most one lesson; signals that only weigh or free may serve several, and end as applied.
* A lesson is planned on a turn that is there and is not private: the last of the checks, not the first.
* The prefix is derived from the turn, never copied.
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from store import leases, ledger
from store.clock import now_us
from store.columns import JsonValue
from store.errors import AlreadyRecorded, LessonRefused, Unknown
from store.records import Entry, KeptLesson, Lesson, Link, PlannedLesson
from store.rows import columns_of, existing, insert_all, lesson_in, record_of, signal_in
from store.signals import homes_in, move_signals
from store.tables import LessonSignalTable, LessonTable, SignalTable, TurnTable
from store.words import LedgerKind, LessonState, Role, SignalState

UNFINISHED = (LessonState.PLANNED, LessonState.RIDING)


def plan_lesson(session: Session, lesson: Lesson, *, signals: Sequence[Link]) -> None:
    """Keep a lesson: the signals that make it are planned with it, those that weigh or free it are applied.

    Raises `AlreadyRecorded` when its id is taken, `Unknown` when its turn or a signal is not there,
    `WrongState` when a signal is already used, `LessonRefused` when the turn is private or too short, `Elsewhere`
    when the agent is not this lane's.
    """
    plan_lessons(session, [PlannedLesson(lesson, tuple(signals))])


def plan_lessons(session: Session, planned: Sequence[PlannedLesson]) -> int:
    """Keep lessons, as `plan_lesson` does one; when they were planned, microseconds. All are kept, or none."""
    at_us = now_us()
    if not planned:
        return at_us
    for agent in {one.lesson.agent for one in planned}:
        leases.require(session, agent)
    _require_free(session, [one.lesson.id for one in planned])
    _check_turns(session, [one.lesson for one in planned])
    made = {"state": LessonState.PLANNED, "planned_at_us": at_us}
    insert_all(session, LessonTable, [columns_of(one.lesson) | made for one in planned])
    _use_signals(session, planned)
    links = [columns_of(link) | {"lesson": one.lesson.id} for one in planned for link in one.links]
    if links:
        insert_all(session, LessonSignalTable, links)
    ledger.append_all(session, [_planned(one) for one in planned], at_us=at_us)
    return at_us


def reweigh_lesson(session: Session, lesson_id: str, *, weights: tuple[float, ...], signal: str | None) -> None:
    """Give the rows of a lesson that has not begun its ride other weights: a signal says so, or none does."""
    row = lesson_in(session, lesson_id, [LessonState.PLANNED])
    assert len(weights) == len(row.weights), f"lesson {lesson_id}: {len(weights)} weights, {len(row.weights)} rows"
    row.weights = weights
    if signal is not None:
        weigh(session, lesson_id, signal)
    session.flush()
    ledger.append(session, _told(row, state=row.state, weighed_by=signal, weight_sum=sum(weights)))


def begin_ride(session: Session, lesson_id: str, *, turn: str | None) -> None:
    """A batch takes the lesson on: that of `turn`, or none's in an idle gap. Raises as `refuse_lesson`."""
    row = lesson_in(session, lesson_id, [LessonState.PLANNED])
    row.ridden_turn = turn
    move_lesson(session, row, LessonState.RIDING)
    ledger.append(session, _told(row, state=row.state, ridden_turn=turn))


def end_ride(session: Session, lesson_id: str) -> None:
    """The ride ended without a decision: the lesson waits again. One that had not begun its ride just waits on."""
    row = lesson_in(session, lesson_id, UNFINISHED)
    if row.state is LessonState.PLANNED:
        return
    cut_off = row.ridden_turn
    row.ridden_turn = None
    move_lesson(session, row, LessonState.PLANNED)
    ledger.append(session, _told(row, state=row.state, why="the ride ended early", ridden_turn=cut_off))


def refuse_lesson(
    session: Session, lesson_id: str, *, code: str, message: str, position: int | None = None
) -> None:
    """End a lesson, and the signals that make it, with the reason. Raises `Unknown` or `WrongState`."""
    end_lesson(session, lesson_in(session, lesson_id, UNFINISHED), code=code, message=message, position=position)


def end_lesson(
    session: Session, row: LessonTable, *, code: str, message: str, position: int | None = None
) -> None:
    """End a lesson that may be ended here, as `refuse_lesson`."""
    row.code, row.message, row.position = code, message, position
    refusal = {"code": code, "message": message, "position": position}
    move_lesson(session, row, LessonState.REFUSED, **refusal)
    makers = list(makers_of(session, row.id))
    body: dict[str, JsonValue] = {
        "of": "lesson",
        "signals": [*makers],
        "message": message,
        "position": position,
    }
    told = Entry(
        kind=LedgerKind.REFUSAL, agent=row.agent, context=row.context, subject=row.id, code=code, body=body
    )
    ledger.append(session, told)


def recover(session: Session, agent: str | None = None) -> list[KeptLesson]:
    """Put rides that a crash cut off back to planned, and give all planned lessons, the oldest first.

    Those of one agent, or where there is one writer of all. A ride without a committed step has trained nothing
    that was kept, so it may be done again. Raises `Elsewhere` when the agent is not this lane's.
    """
    assert agent is not None or not leases.Leases.of(session).shared, "another lane's lessons ride"
    mine = [] if agent is None else [LessonTable.agent == agent]
    if agent is not None:
        leases.require(session, agent)
    for row in session.scalars(select(LessonTable).where(LessonTable.state == LessonState.RIDING, *mine)).all():
        cut_off = row.ridden_turn
        row.ridden_turn = None
        move_lesson(session, row, LessonState.PLANNED)
        told = _told(row, state=row.state, why="the ride was cut off by a restart", ridden_turn=cut_off)
        ledger.append(session, told)
    return _select(session, LessonTable.state == LessonState.PLANNED, *mine)


def lesson_of(session: Session, lesson_id: str) -> KeptLesson:
    """The lesson of that id, with its prefix. Raises `Unknown` when there is none."""
    return _kept(session, existing(session, LessonTable, lesson_id))


def waiting_lessons(session: Session, *, agent: str, context: str | None = None) -> list[KeptLesson]:
    """The planned lessons of an agent, in one context or in all, the oldest first."""
    waiting = (LessonTable.state == LessonState.PLANNED, LessonTable.agent == agent)
    return _select(session, *waiting, *(() if context is None else (LessonTable.context == context,)))


def makers_of(session: Session, lesson_id: str) -> tuple[str, ...]:
    """The ids of the signals that make the lesson: those that are consumed when it is learned."""
    return tuple(link.signal for link in _links(session, lesson_id) if link.role is Role.MAKES)


def move_lesson(session: Session, row: LessonTable, state: LessonState, **refusal: str | int | None) -> None:
    """Move a lesson, and the signals that make it, to a state of the same name."""
    row.state = state
    mine = update(SignalTable).where(SignalTable.id.in_(makers_of(session, row.id)))
    session.execute(mine.values(state=SignalState(state), **refusal))
    session.flush()


def _require_free(session: Session, ids: Sequence[str]) -> None:
    taken = session.scalar(select(LessonTable.id).where(LessonTable.id.in_(ids)).limit(1))
    if taken is not None:
        raise AlreadyRecorded("lesson", taken)


def _check_turns(session: Session, lessons: Sequence[Lesson]) -> None:
    query = select(
        TurnTable.id, TurnTable.private, TurnTable.prompt_token_count, TurnTable.reply_token_count
    ).where(TurnTable.id.in_({lesson.turn for lesson in lessons}))
    turns = {row.id: row for row in session.execute(query)}
    for lesson in lessons:
        turn = turns.get(lesson.turn)
        if turn is None:
            raise Unknown("turn", lesson.turn)
        if turn.private:
            raise LessonRefused(
                f"lesson {lesson.id!r}: turn {turn.id!r} is private, and private turns never train"
            )
        length_tokens = turn.prompt_token_count + turn.reply_token_count
        if lesson.prefix_token_count > length_tokens:
            raise LessonRefused(
                f"lesson {lesson.id!r}: a prefix of {lesson.prefix_token_count} tokens was given,"
                f" turn {turn.id!r} has {length_tokens}: plan it from the turn that was served"
            )


def _use_signals(session: Session, planned: Sequence[PlannedLesson]) -> None:
    """The signals that make a lesson are planned, the others applied."""
    links = [(link, one.lesson.id) for one in planned for link in one.links]
    makers = [(link.signal, lesson) for link, lesson in links if link.role is Role.MAKES]
    others = [link.signal for link, _ in links if link.role is not Role.MAKES]
    assert len({signal for signal, _ in makers}) == len(makers), f"a signal makes two lessons: {makers}"
    homes_in(session, [signal for signal, _ in makers], [SignalState.RECEIVED])
    homes_in(session, others, [SignalState.RECEIVED, SignalState.APPLIED])
    if makers:
        state = SignalState.PLANNED
        session.execute(
            update(SignalTable), [{"id": signal, "lesson": lesson, "state": state} for signal, lesson in makers]
        )
    if others:
        move_signals(session, others, SignalState.APPLIED)


def weigh(session: Session, lesson_id: str, signal: str) -> None:
    """Tie a signal to a lesson that it weighs; tying it again is no error, and no second link."""
    row = signal_in(session, signal, [SignalState.RECEIVED, SignalState.APPLIED])
    row.state = SignalState.APPLIED
    session.merge(LessonSignalTable(lesson=lesson_id, signal=signal, role=Role.WEIGHS))


def _links(session: Session, lesson_id: str) -> tuple[Link, ...]:
    query = select(LessonSignalTable).join(SignalTable, SignalTable.id == LessonSignalTable.signal)
    rows = session.scalars(query.where(LessonSignalTable.lesson == lesson_id).order_by(SignalTable.arrival))
    return tuple(Link(row.signal, row.role) for row in rows)


def _select(session: Session, *where: ColumnElement[bool]) -> list[KeptLesson]:
    oldest = (LessonTable.planned_at_us, LessonTable.id)
    return [_kept(session, row) for row in session.scalars(select(LessonTable).where(*where).order_by(*oldest))]


def _kept(session: Session, row: LessonTable) -> KeptLesson:
    turn = existing(session, TurnTable, row.turn)
    served = (turn.prompt_tokens or ()) + (turn.reply_tokens or ())
    return record_of(
        KeptLesson,
        row,
        lesson=record_of(Lesson, row),
        prefix=served[: row.prefix_token_count],
        links=_links(session, row.id),
    )


def _planned(planned: PlannedLesson) -> Entry:
    lesson = planned.lesson
    return Entry(
        kind=LedgerKind.LESSON,
        agent=lesson.agent,
        context=lesson.context,
        subject=lesson.id,
        body={
            "state": LessonState.PLANNED,
            "kind": lesson.kind,
            "turn": lesson.turn,
            "prefix_token_count": lesson.prefix_token_count,
            "rows": len(lesson.tokens),
            "weight_sum": sum(lesson.weights),
            "lr": lesson.lr,
            "signals": {link.signal: link.role for link in planned.links},
        },
    )


def _told(row: LessonTable, **body: str | float | None) -> Entry:
    return Entry(kind=LedgerKind.LESSON, agent=row.agent, context=row.context, subject=row.id, body=dict(body))
