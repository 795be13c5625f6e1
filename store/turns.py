"""Turns: recording one, and finding it again.

* A private turn is stripped of its words here, whatever the caller passes.
* A context is private as soon as one turn of it was: privacy is never taken back by a later header.
"""

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from store import ledger
from store.errors import AlreadyRecorded
from store.records import Entry, Turn
from store.rows import columns_of, existing, record_of
from store.tables import TurnTable
from store.words import LedgerKind


def record_turn(session: Session, turn: Turn) -> None:
    """Keep a turn that was served. Raises `AlreadyRecorded` when its id is taken."""
    if session.get(TurnTable, turn.id) is not None:
        raise AlreadyRecorded("turn", turn.id)
    kept = turn.without_words() if turn.private else turn
    session.add(TurnTable(**columns_of(kept)))
    session.flush()
    ledger.append(session, _told(kept))


def turn_of(session: Session, turn_id: str) -> Turn:
    """The turn of that id. Raises `Unknown` when there is none."""
    return record_of(Turn, existing(session, TurnTable, turn_id))


def latest_turn(session: Session, *, agent: str, context: str) -> Turn | None:
    """The agent's last turn in that context."""
    newest = (TurnTable.created_at_us.desc(), TurnTable.id.desc())
    query = select(TurnTable).where(TurnTable.agent == agent, TurnTable.context == context)
    row = session.scalar(query.order_by(*newest).limit(1))
    return None if row is None else record_of(Turn, row)


def context_is_private(session: Session, *, agent: str, context: str) -> bool:
    """Whether any turn of the agent in that context was private."""
    mine = exists().where(TurnTable.agent == agent, TurnTable.context == context, TurnTable.private)
    return bool(session.scalar(select(mine)))


def _told(turn: Turn) -> Entry:
    return Entry(
        kind=LedgerKind.TURN,
        agent=turn.agent,
        context=turn.context,
        subject=turn.id,
        body={
            "private": turn.private,
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
