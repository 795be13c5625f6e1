"""Turns: recording one, and finding it again.

* A private turn is stripped of its words here, whatever the caller passes.
* A context is private as soon as one turn of it was: privacy is never taken back by a later header.
* A turn that lessons are planned on before its end is kept from its beginning on, open; the ledger tells of it at
  its end, as of every turn. One that a crash left open is ended as failed.
"""

from collections.abc import Collection

from sqlalchemy import LargeBinary, select, type_coerce
from sqlalchemy.orm import Session

from store import ledger
from store.columns import token_bytes
from store.errors import AlreadyRecorded
from store.leases import Leases
from store.records import Entry, Turn
from store.rows import columns_of, existing, record_of
from store.tables import LedgerTable, TurnTable
from store.words import LedgerKind

FAILED = "failed"
"""The finish reason of a turn that a crash ended."""

NEWEST = 1_000
"""Turns in which a conversation is looked for: many more than a lane's slots still hold, and read in a moment."""


def open_turn(session: Session, turn: Turn) -> None:
    """Keep a turn that has yet to be served. Raises `AlreadyRecorded` when its id is taken."""
    assert turn.finish_reason is None, f"turn {turn.id} has ended: {turn.finish_reason}"
    _require_free(session, turn.id)
    session.add(TurnTable(**columns_of(_kept(turn))))
    session.flush()


def record_turn(session: Session, turn: Turn) -> None:
    """Keep a turn that was served, open until now or new. Raises `AlreadyRecorded` when its id is taken."""
    assert turn.finish_reason is not None, f"turn {turn.id} has not ended"
    kept, row = _kept(turn), session.get(TurnTable, turn.id)
    if row is None:
        session.add(TurnTable(**columns_of(kept)))
    elif row.finish_reason is None:
        if record_of(Turn, row).is_forgotten:  # meanwhile: what was said does not come back
            kept = kept.without_words()
        for name, value in columns_of(kept).items():
            setattr(row, name, value)
    else:
        raise AlreadyRecorded("turn", turn.id)
    session.flush()
    ledger.append(session, _told(kept))


def end_open_turns(session: Session) -> int:
    """End every turn that a crash of this lane left open; returns how many there were."""
    leases = Leases.of(session)
    mine = [TurnTable.lane == leases.lane] if leases.shared else []
    rows = session.scalars(select(TurnTable).where(TurnTable.finish_reason.is_(None), *mine)).all()
    for row in rows:
        row.finish_reason = FAILED
        session.flush()
        ledger.append(session, _told(record_of(Turn, row)))
    return len(rows)


def turn_of(session: Session, turn_id: str) -> Turn:
    """The turn of that id. Raises `Unknown` when there is none."""
    return record_of(Turn, existing(session, TurnTable, turn_id))


def turns_of(session: Session, ids: Collection[str]) -> dict[str, Turn]:
    """Turns by id; of an id that there is not, nothing."""
    rows = session.scalars(select(TurnTable).where(TurnTable.id.in_(ids)))
    return {row.id: record_of(Turn, row) for row in rows}


def lanes_of(session: Session, ids: Collection[str]) -> dict[str, str]:
    """The lanes that served turns; of an id that there is not, nothing."""
    rows = session.execute(select(TurnTable.id, TurnTable.lane).where(TurnTable.id.in_(ids)))
    return {row.id: row.lane for row in rows}


def latest_turn(session: Session, *, agent: str, context: str) -> Turn | None:
    """The agent's last turn in that context."""
    newest = (TurnTable.created_at_us.desc(), TurnTable.id.desc())
    query = select(TurnTable).where(TurnTable.agent == agent, TurnTable.context == context)
    row = session.scalar(query.order_by(*newest).limit(1))
    return None if row is None else record_of(Turn, row)


def last_on_slot(session: Session, slot: int) -> Turn | None:
    """The turn that was recorded last of those that this lane served on that slot, whoever's it is."""
    query = select(TurnTable).join(LedgerTable, LedgerTable.subject == TurnTable.id)
    here = (TurnTable.slot == slot, TurnTable.lane == Leases.of(session).lane)
    mine = query.where(LedgerTable.kind == LedgerKind.TURN, *here)
    row = session.scalar(mine.order_by(LedgerTable.seq.desc()).limit(1))
    return None if row is None else record_of(Turn, row)


def begun_with(session: Session, *, agent: str, tokens: tuple[int, ...]) -> Turn | None:
    """The agent's newest turn whose prompt and reply begin with those tokens; else the one that shares most.

    None when no turn shares any. Only the newest `NEWEST` are looked at.
    """
    prompt, reply = (type_coerce(own, LargeBinary) for own in (TurnTable.prompt_tokens, TurnTable.reply_tokens))
    ended = (TurnTable.agent == agent, TurnTable.finish_reason.is_not(None), TurnTable.prompt_tokens.is_not(None))
    newest = (TurnTable.created_at_us.desc(), TurnTable.id.desc())
    query = select(TurnTable.id, prompt, reply).where(*ended).order_by(*newest).limit(NEWEST)
    wanted, best, most = token_bytes(tokens), None, 0
    for found, asked, answered in session.execute(query):
        shared = _shared_bytes(asked + answered, wanted)
        if shared > most:
            best, most = found, shared
        if most == len(wanted):
            break
    return None if best is None else turn_of(session, best)


def context_is_private(session: Session, *, agent: str, context: str) -> bool:
    """Whether any turn of the agent in that context was private."""
    return bool(private_among(session, [(agent, context)]))


def private_among(session: Session, rooms: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of these contexts, each of an agent, had a private turn."""
    agents, contexts = ({room[part] for room in rooms} for part in (0, 1))
    near = (TurnTable.agent.in_(agents), TurnTable.context.in_(contexts))  # of pairs SQLite reads the whole index
    found = session.execute(select(TurnTable.agent, TurnTable.context).where(TurnTable.private, *near).distinct())
    return {(row.agent, row.context) for row in found}.intersection(rooms)


def _require_free(session: Session, turn_id: str) -> None:
    if session.get(TurnTable, turn_id) is not None:
        raise AlreadyRecorded("turn", turn_id)


def _kept(turn: Turn) -> Turn:
    return turn.without_words() if turn.private else turn


def _shared_bytes(one: bytes, other: bytes) -> int:
    """How many whole tokens' bytes two sequences begin with alike."""
    low, high = 0, min(len(one), len(other)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if one[: 4 * middle] == other[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return 4 * low


def _told(turn: Turn) -> Entry:
    return Entry(
        kind=LedgerKind.TURN,
        agent=turn.agent,
        context=turn.context,
        subject=turn.id,
        body={
            "private": turn.private,
            "lane": turn.lane,
            "slot": turn.slot,
            "adapter": turn.adapter,
            "prompt_token_count": turn.prompt_token_count,
            "reply_token_count": turn.reply_token_count,
            "cached_token_count": turn.cached_token_count,
            "finish_reason": turn.finish_reason,
            "first_token_ms": turn.first_token_ms,
            "total_ms": turn.total_ms,
        },
    )
