"""What planning signals needs from the store, looked up at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from signals.records import Engram, Labels, Outcome, Relevance, Verdict, parse_signal
from signals.runs import LessonSignal
from signals.weights import Trust
from store import signals, turns
from store.records import KeptSignal
from store.records import Signal as StoredSignal
from store.records import Turn as StoredTurn

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
    judged_by: str | None
    """The signal that told the outcome."""
    sender: Trust


def look_up(session: Session, given: Sequence[LessonSignal]) -> list[Lookup]:
    """Find what planning signals that are on disk needs, in their order."""
    ids = [signal.id for signal in given]
    kept = {one.signal.id: one.signal for one in signals.signals_of(session, ids)}
    named = {signal.turn for signal in given if signal.turn is not None}
    found = turns.turns_of(session, named)
    verdicts = signals.verdicts_of(session, named)
    told = signals.latest_relevances(session, [signal.id for signal in given if isinstance(signal, Engram)])
    private = turns.private_among(session, {(signal.agent, signal.context) for signal in given})
    return [
        _lookup(
            None if signal.turn is None else _seen(found.get(signal.turn), signal),
            kept[signal.id],
            told=told.get((signal.agent, signal.id)),
            verdict=verdicts.get((signal.agent, signal.turn or "")),
            private=kept[signal.id].private or (signal.agent, signal.context) in private,
        )
        for signal in given
    ]


def _lookup(
    turn: StoredTurn | None,
    signal: StoredSignal,
    *,
    told: KeptSignal | None,
    verdict: KeptSignal | None,
    private: bool,
) -> Lookup:
    weighing = None if told is None else _said(told, Relevance)
    judging = None if verdict is None else _said(verdict, Verdict)
    return Lookup(
        turn=turn,
        private=private,
        relevance=None if weighing is None else weighing.relevance,
        weighed_by=None if weighing is None else weighing.id,
        outcome=Outcome.UNKNOWN if judging is None else judging.outcome,
        judged_by=None if judging is None else judging.id,
        sender=Trust(signal.sender),
    )


def _seen(turn: StoredTurn | None, signal: LessonSignal) -> StoredTurn | None:
    """The turn as that signal may see it: an open one for its own labels only, a forgotten one never."""
    if turn is None or turn.is_forgotten:
        return None
    return turn if turn.finish_reason is not None or isinstance(signal, Labels) else None


def _said(kept: KeptSignal, kind: type[S]) -> S | None:
    """What a signal said; None where that is erased."""
    if kept.signal.body is None:
        return None
    signal = parse_signal(dict(kept.signal.body))
    assert isinstance(signal, kind), f"signal {signal.id} is a {signal.kind}"
    return signal
