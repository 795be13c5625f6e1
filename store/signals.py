"""Signals: putting them, saying what became of them, and finding the ones that count.

* The id is the client's and is the idempotency key: the same body again is no news, another is a conflict.
* Of a private signal, or of any signal in a private context, the body is not kept: only its fingerprint. Kinds
  that hold none of what was said are kept whole, and so still count.
* The latest of several is the last to arrive, not the one with the latest client clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from store import ledger
from store.clock import now_us
from store.errors import Unknown, WrongState
from store.records import Entry, KeptSignal, Put, RefusedSignal, Signal
from store.rows import columns_of, insert_all, record_of
from store.tables import SignalTable, StepTable
from store.turns import private_among
from store.words import LedgerKind, SignalState

ENDABLE = (SignalState.RECEIVED, SignalState.APPLIED)
"""States a signal can be refused from by itself; once it makes a lesson, it is refused with that."""

WORDLESS = frozenset({"relevance", "verdict"})
"""Kinds whose bodies hold none of what was said."""

Ends = Mapping[str, RefusedSignal | None]
"""Signals that end as they are put, by id: refused for that, or applied where there is nothing."""

NONE_ENDS: Ends = MappingProxyType({})


class SignalHome(NamedTuple):
    """Whose a signal is, as the ledger tells of it."""

    id: str
    agent: str
    context: str


def put_signals(session: Session, signals: Sequence[Signal], *, ends: Ends = NONE_ENDS) -> list[Put]:
    """Keep the signals that are new, and say of each whether it was: the answers are in the order given."""
    known = {kept.signal.id: kept for kept in _select(session, SignalTable.id.in_({one.id for one in signals}))}
    fresh = {signal.id: signal for signal in reversed(signals) if signal.id not in known}
    new = _insert(session, [signal for signal in signals if fresh.get(signal.id) is signal], ends)
    return [
        Put("new", new[signal.id])
        if fresh.get(signal.id) is signal
        else _put_again(signal, new.get(signal.id) or known[signal.id])
        for signal in signals
    ]


def _put_again(signal: Signal, kept: KeptSignal) -> Put:
    return Put("same" if kept.signal.fingerprint == signal.fingerprint else "conflict", kept)


def apply_signal(session: Session, signal_id: str) -> None:
    """Take note of a signal that only changes how others are weighed. Raises `Unknown` or `WrongState`."""
    apply_signals(session, [signal_id])


def apply_signals(session: Session, ids: Sequence[str]) -> None:
    """Take note of signals, as `apply_signal` does of one."""
    if not ids:
        return
    homes = homes_in(session, ids, [SignalState.RECEIVED])
    move_signals(session, ids, SignalState.APPLIED)
    ledger.append_all(session, [_ended(home, None) for home in homes])


def refuse_signal(
    session: Session, signal_id: str, *, code: str, message: str, position: int | None = None
) -> None:
    """End a signal that makes no lesson, with the reason. Raises `Unknown` or `WrongState`."""
    refuse_signals(session, [RefusedSignal(signal_id, code, message, position)])


def refuse_signals(session: Session, refused: Sequence[RefusedSignal]) -> None:
    """End signals that make no lesson, each with its reason, as `refuse_signal` does one."""
    if not refused:
        return
    homes = homes_in(session, [one.id for one in refused], ENDABLE)
    session.execute(update(SignalTable), [columns_of(one) | {"state": SignalState.REFUSED} for one in refused])
    ledger.append_all(session, [_ended(home, one) for home, one in zip(homes, refused, strict=True)])


def move_signals(session: Session, ids: Collection[str], state: SignalState) -> None:
    """Put signals into a state."""
    session.execute(update(SignalTable).where(SignalTable.id.in_(ids)).values(state=state))


def homes_in(session: Session, ids: Sequence[str], allowed: Collection[SignalState]) -> list[SignalHome]:
    """Whose the signals are, in the order given. Raises `Unknown`, or `WrongState` for a state not allowed."""
    query = select(SignalTable.id, SignalTable.agent, SignalTable.context, SignalTable.state)
    rows = {row.id: row for row in session.execute(query.where(SignalTable.id.in_(ids)))}
    for identity in ids:
        if identity not in rows:
            raise Unknown("signal", identity)
        if rows[identity].state not in allowed:
            raise WrongState("signal", identity, state=rows[identity].state, allowed=allowed)
    return [SignalHome(one, rows[one].agent, rows[one].context) for one in ids]


def signal_of(session: Session, signal_id: str) -> KeptSignal:
    """A signal and its fate. Raises `Unknown` when there is none of that id."""
    return signals_of(session, [signal_id])[0]


def signals_of(session: Session, ids: Sequence[str]) -> list[KeptSignal]:
    """Signals and their fates, in the order given. Raises `Unknown` when there is none of an id."""
    found = {kept.signal.id: kept for kept in _select(session, SignalTable.id.in_(ids))}
    for identity in ids:
        if identity not in found:
            raise Unknown("signal", identity)
    return [found[identity] for identity in ids]


def states_of(session: Session, ids: Collection[str]) -> dict[str, SignalState]:
    """Where signals stand; of an id that there is not, nothing."""
    rows = session.execute(select(SignalTable.id, SignalTable.state).where(SignalTable.id.in_(ids)))
    return {row.id: row.state for row in rows}


def received_signals(session: Session) -> list[KeptSignal]:
    """The signals not planned, refused or applied yet, in order of arrival: what a restart goes on with."""
    return _select(session, SignalTable.state == SignalState.RECEIVED)


def signals_of_turn(session: Session, turn_id: str) -> list[KeptSignal]:
    """All that was said of a turn, in order of arrival."""
    return _select(session, SignalTable.turn == turn_id)


def latest_relevance(session: Session, *, agent: str, engram: str) -> KeptSignal | None:
    """The agent's latest relevance of that engram that was not refused."""
    return latest_relevances(session, [engram]).get((agent, engram))


def latest_relevances(session: Session, engrams: Collection[str]) -> dict[tuple[str, str], KeptSignal]:
    """The latest relevance that was not refused, by agent and engram."""
    return {
        (kept.signal.agent, str(kept.signal.engram)): kept
        for kept in _latest(session, kind="relevance", about=SignalTable.engram, among=engrams)
    }


def relevances_of(session: Session, *, agent: str, engram: str) -> list[KeptSignal]:
    """The agent's relevances of that engram that were not refused, in order of arrival: the last one counts."""
    told = (SignalTable.agent == agent, SignalTable.kind == "relevance", SignalTable.engram == engram)
    return _select(session, *told, SignalTable.state != SignalState.REFUSED)


def verdict_of(session: Session, *, agent: str, turn: str) -> KeptSignal | None:
    """The agent's latest verdict on that turn that was not refused."""
    return verdicts_of(session, [turn]).get((agent, turn))


def verdicts_of(session: Session, turns: Collection[str]) -> dict[tuple[str, str], KeptSignal]:
    """The latest verdict that was not refused, by agent and turn."""
    return {
        (kept.signal.agent, str(kept.signal.turn)): kept
        for kept in _latest(session, kind="verdict", about=SignalTable.turn, among=turns)
    }


def _insert(session: Session, signals: Sequence[Signal], ends: Ends) -> dict[str, KeptSignal]:
    """Keep signals that are new, and tell of them and of those that end at once."""
    if not signals:
        return {}
    at_us = now_us()
    refused = [(signal, why) for signal in signals if (why := ends.get(signal.id)) is not None]
    entries = [_put(signal, applied=signal.id in ends and ends[signal.id] is None) for signal in signals]
    entries += [_ended(signal, why) for signal, why in refused]
    told = ledger.append_all(session, entries, at_us=at_us)
    private = private_among(session, {(signal.agent, signal.context) for signal in signals})
    kept = [_new(signal, ends, private, at_us) for signal in signals]
    insert_all(
        session,
        SignalTable,
        [_columns_of(one) | {"arrival": row.seq} for one, row in zip(kept, told, strict=False)],
    )
    return {one.signal.id: one for one in kept}


def _new(signal: Signal, ends: Ends, private: Collection[tuple[str, str]], at_us: int) -> KeptSignal:
    hidden = signal.private or (signal.agent, signal.context) in private
    hidden = hidden and signal.kind not in WORDLESS
    if hidden or signal.private:
        signal = replace(signal, private=hidden, body=None if hidden else signal.body)
    why = ends.get(signal.id)
    unhindered = SignalState.APPLIED if signal.id in ends else SignalState.RECEIVED
    return KeptSignal(
        signal=signal,
        state=unhindered if why is None else SignalState.REFUSED,
        received_at_us=at_us,
        code=None if why is None else why.code,
        message=None if why is None else why.message,
        position=None if why is None else why.position,
    )


def _columns_of(kept: KeptSignal) -> dict[str, object]:
    fate = ("state", "received_at_us", "code", "message", "position")
    return columns_of(kept.signal) | {name: getattr(kept, name) for name in fate}


def _select(session: Session, *where: ColumnElement[bool]) -> list[KeptSignal]:
    learned = select(SignalTable, *_STEP).outerjoin(StepTable, StepTable.lesson == SignalTable.lesson)
    rows = session.execute(learned.where(*where).order_by(SignalTable.arrival))
    return [
        _kept(row, step=step, step_number=number, loss_before=before, loss_after=after)
        for row, step, number, before, after in rows
    ]


_STEP = (StepTable.id, StepTable.number, StepTable.loss_before, StepTable.loss_after)


def _latest(
    session: Session, *, kind: str, about: InstrumentedAttribute[str | None], among: Collection[str]
) -> list[KeptSignal]:
    """Of each agent the last to arrive about each of those."""
    if not among:
        return []
    counts = (SignalTable.kind == kind, SignalTable.state != SignalState.REFUSED, about.in_(among))
    last = select(func.max(SignalTable.arrival)).where(*counts).group_by(SignalTable.agent, about)
    rows = session.scalars(select(SignalTable).where(SignalTable.arrival.in_(last)))
    return [_kept(row) for row in rows]


def _kept(row: SignalTable, **step: object) -> KeptSignal:
    nothing = dict.fromkeys(("step", "step_number", "loss_before", "loss_after"))
    return record_of(KeptSignal, row, signal=record_of(Signal, row), **(nothing | step))


def _put(signal: Signal, *, applied: bool) -> Entry:
    """What the ledger tells of a signal that is put; of one that is applied at once that is all."""
    return Entry(
        kind=LedgerKind.SIGNAL,
        agent=signal.agent,
        context=signal.context,
        subject=signal.id,
        body={
            "state": SignalState.APPLIED if applied else SignalState.RECEIVED,
            "kind": signal.kind,
            "turn": signal.turn,
            "engram": signal.engram,
            "fingerprint": signal.fingerprint,
        },
    )


def _ended(home: SignalHome | Signal, why: RefusedSignal | None) -> Entry:
    """What the ledger tells of a signal that is refused, or applied where there is no reason against it."""
    if why is None:
        return _told(home, LedgerKind.SIGNAL, state=SignalState.APPLIED)
    return _told(home, LedgerKind.REFUSAL, code=why.code, of="signal", message=why.message, position=why.position)


def _told(
    home: SignalHome | Signal, kind: LedgerKind, *, code: str | None = None, **body: str | int | None
) -> Entry:
    return Entry(kind=kind, agent=home.agent, context=home.context, subject=home.id, code=code, body=dict(body))
