"""What waits for a lane that is away: ended by another lane, once it has waited for as long as anything may.

The lane that was away would end it too when it comes back; until then nobody who asks would be told.
"""

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from store.leases import live_agents
from store.lessons import UNFINISHED, end_lesson
from store.records import RefusedSignal
from store.signals import refuse_signals
from store.tables import LessonTable, SignalTable
from store.words import SignalState


def end_abandoned(session: Session, *, before_us: int, code: str, message: str) -> int:
    """Refuse lessons planned, and signals received, before that time whose agents have no lane now; how many.

    Their rows were the other lane's to change, but no lane has a lease for it, and none is given meanwhile.
    """
    live = live_agents(session)
    lost = (LessonTable.state.in_(UNFINISHED), LessonTable.planned_at_us < before_us)
    lessons = session.scalars(select(LessonTable).where(*lost, LessonTable.agent.not_in(live))).all()
    for row in lessons:
        end_lesson(session, row, code=code, message=message)
    unread = (SignalTable.state == SignalState.RECEIVED, SignalTable.received_at_us < before_us)
    signals = session.scalars(select(SignalTable.id).where(*unread, SignalTable.agent.not_in(live))).all()
    refuse_signals(session, [RefusedSignal(signal, code, message) for signal in signals])
    return len(lessons) + len(signals)


def any_abandoned(session: Session, *, before_us: int) -> bool:
    """Is there anything that old to look at?"""
    old = exists().where(LessonTable.state.in_(UNFINISHED), LessonTable.planned_at_us < before_us)
    unread = exists().where(SignalTable.state == SignalState.RECEIVED, SignalTable.received_at_us < before_us)
    return bool(session.scalar(select(old | unread)))
