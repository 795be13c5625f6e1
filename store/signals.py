"""Signals: putting them, saying what became of them, and finding the ones that count.

* The id is the client's and is the idempotency key: the same body again is no news, another is a conflict.
* Of a private signal, or of any signal in a private context, the body is not kept: only its fingerprint.
* The latest of several is the last to arrive, not the one with the latest client clock.
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.orm import Session

from store import ledger
from store.clock import now_us
from store.errors import Unknown
from store.records import Entry, KeptSignal, Put, Signal
from store.rows import columns_of, record_of, signal_in
from store.tables import SignalTable, StepTable
from store.turns import context_is_private
from store.words import LedgerKind, SignalState

ENDABLE = (SignalState.RECEIVED, SignalState.APPLIED)
"""States a signal can be refused from by itself; once it makes a lesson, it is refused with that."""


def put_signals(session: Session, signals: Sequence[Signal]) -> list[Put]:
    """Keep the signals that are new, and say of each whether it was: the answers are in the order given."""
    known = _known(session, signals)
    fresh: list[Signal] = []
    puts: list[Put] = []
    for signal in signals:
        if signal.id not in known:
            known[signal.id] = (signal.fingerprint, SignalState.RECEIVED)
            fresh.append(signal)
            puts.append(Put(signal.id, "new", SignalState.RECEIVED))
            continue
        fingerprint, state = known[signal.id]
        puts.append(Put(signal.id, "same" if fingerprint == signal.fingerprint else "conflict", state))
    _insert(session, fresh)
    return puts


def apply_signal(session: Session, signal_id: str) -> None:
    """Take note of a signal that only changes how others are weighed. Raises `Unknown` or `WrongState`."""
    row = signal_in(session, signal_id, [SignalState.RECEIVED])
    row.state = SignalState.APPLIED
    session.flush()
    ledger.append(session, _told(row, LedgerKind.SIGNAL, state=SignalState.APPLIED))


def refuse_signal(
    session: Session, signal_id: str, *, code: str, message: str, position: int | None = None
) -> None:
    """End a signal that makes no lesson, with the reason. Raises `Unknown` or `WrongState`."""
    row = signal_in(session, signal_id, ENDABLE)
    row.state, row.code, row.message, row.position = SignalState.REFUSED, code, message, position
    session.flush()
    told = _told(row, LedgerKind.REFUSAL, code=code, of="signal", message=message, position=position)
    ledger.append(session, told)


def signal_of(session: Session, signal_id: str) -> KeptSignal:
    """A signal and its fate. Raises `Unknown` when there is none of that id."""
    found = _select(session, SignalTable.id == signal_id)
    if not found:
        raise Unknown("signal", signal_id)
    return found[0]


def received_signals(session: Session) -> list[KeptSignal]:
    """The signals not planned, refused or applied yet, in order of arrival: what a restart goes on with."""
    return _select(session, SignalTable.state == SignalState.RECEIVED)


def signals_of_turn(session: Session, turn_id: str) -> list[KeptSignal]:
    """All that was said of a turn, in order of arrival."""
    return _select(session, SignalTable.turn == turn_id)


def latest_relevance(session: Session, *, agent: str, engram: str) -> KeptSignal | None:
    """The agent's latest relevance of that engram that was not refused."""
    return _latest(session, agent=agent, kind="relevance", about=SignalTable.engram == engram)


def verdict_of(session: Session, *, agent: str, turn: str) -> KeptSignal | None:
    """The agent's latest verdict on that turn that was not refused."""
    return _latest(session, agent=agent, kind="verdict", about=SignalTable.turn == turn)


def _known(session: Session, signals: Sequence[Signal]) -> dict[str, tuple[str, SignalState]]:
    query = select(SignalTable.id, SignalTable.fingerprint, SignalTable.state)
    rows = session.execute(query.where(SignalTable.id.in_({signal.id for signal in signals})))
    return {row.id: (row.fingerprint, row.state) for row in rows}


def _insert(session: Session, signals: Sequence[Signal]) -> None:
    if not signals:
        return
    at_us = now_us()
    told = ledger.append_all(session, [_received(signal) for signal in signals], at_us=at_us)
    rooms = {(signal.agent, signal.context) for signal in signals}
    private = {room for room in rooms if context_is_private(session, agent=room[0], context=room[1])}
    rows = []
    for signal, row in zip(signals, told, strict=True):
        hidden = signal.private or (signal.agent, signal.context) in private
        kept = {"private": hidden, "body": None if hidden else signal.body, "arrival": row.seq}
        rows.append(columns_of(signal) | kept | {"state": SignalState.RECEIVED, "received_at_us": at_us})
    session.execute(insert(SignalTable), rows)


def _select(session: Session, *where: ColumnElement[bool]) -> list[KeptSignal]:
    learned = select(SignalTable, StepTable).outerjoin(StepTable, StepTable.lesson == SignalTable.lesson)
    return [_kept(row, step) for row, step in session.execute(learned.where(*where).order_by(SignalTable.arrival))]


def _latest(session: Session, *, agent: str, kind: str, about: ColumnElement[bool]) -> KeptSignal | None:
    mine = (SignalTable.agent == agent, SignalTable.kind == kind, SignalTable.state != SignalState.REFUSED)
    newest = SignalTable.arrival.desc()
    row = session.scalar(select(SignalTable).where(*mine, about).order_by(newest).limit(1))
    return None if row is None else _kept(row, None)


def _kept(row: SignalTable, step: StepTable | None) -> KeptSignal:
    return record_of(
        KeptSignal,
        row,
        signal=record_of(Signal, row),
        step=None if step is None else step.id,
        step_number=None if step is None else step.number,
        loss_before=None if step is None else step.loss_before,
        loss_after=None if step is None else step.loss_after,
    )


def _received(signal: Signal) -> Entry:
    return Entry(
        kind=LedgerKind.SIGNAL,
        agent=signal.agent,
        context=signal.context,
        subject=signal.id,
        body={
            "state": SignalState.RECEIVED,
            "kind": signal.kind,
            "turn": signal.turn,
            "engram": signal.engram,
            "fingerprint": signal.fingerprint,
        },
    )


def _told(row: SignalTable, kind: LedgerKind, *, code: str | None = None, **body: str | int | None) -> Entry:
    return Entry(kind=kind, agent=row.agent, context=row.context, subject=row.id, code=code, body=dict(body))
