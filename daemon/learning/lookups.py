"""What planning a signal needs from the store, looked up at once."""

from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from signals.records import Engram, Labels, Outcome, Relevance, Verdict, parse_signal
from signals.runs import LessonSignal
from store import signals, turns
from store.errors import Unknown
from store.records import KeptSignal
from store.records import Turn as StoredTurn
from store.words import SignalState

S = TypeVar("S", Relevance, Verdict)


@dataclass(frozen=True, slots=True)
class Lookup:
    """All that planning a signal needs from the store."""

    turn: StoredTurn | None
    private: bool
    relevance: float | None
    weighed_by: str | None
    """The signal that told the relevance."""
    outcome: Outcome


def look_up(session: Session, signal: LessonSignal) -> Lookup:
    """Find what planning a signal that is on disk needs."""
    turn = _turn_of(session, signal)
    kept = signals.signal_of(session, signal.id).signal
    told = None
    if isinstance(signal, Engram):
        told = signals.latest_relevance(session, agent=signal.agent, engram=signal.id)
    verdict = None
    if signal.turn is not None:
        verdict = signals.verdict_of(session, agent=signal.agent, turn=signal.turn)
    return Lookup(
        turn=turn,
        private=kept.private,
        relevance=None if told is None else _body(told, Relevance).relevance,
        weighed_by=None if told is None else told.signal.id,
        outcome=Outcome.UNKNOWN if verdict is None else _body(verdict, Verdict).outcome,
    )


def _turn_of(session: Session, signal: LessonSignal) -> StoredTurn | None:
    """The turn that a signal is about. One that is still open is there for its own labels only."""
    if signal.turn is None:
        return None
    try:
        turn = turns.turn_of(session, signal.turn)
    except Unknown:
        return None
    return turn if turn.finish_reason is not None or isinstance(signal, Labels) else None


def _body(kept: KeptSignal, kind: type[S]) -> S:
    assert kept.signal.body is not None, f"signal {kept.signal.id} has no body"
    signal = parse_signal(dict(kept.signal.body))
    assert isinstance(signal, kind), f"signal {signal.id} is a {signal.kind}"
    return signal


def state_of(session: Session, signal: str) -> SignalState | None:
    """Where a signal stands, if there is one of that id."""
    try:
        return signals.signal_of(session, signal).state
    except Unknown:
        return None
