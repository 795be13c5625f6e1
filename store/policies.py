"""Policies: what operators have put for agents, kept in the ledger alone; the last row about an agent counts.

One that is archived is said again, so that it goes on counting.
"""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store import ledger
from store.columns import JsonValue
from store.errors import Unknown
from store.records import Body, Entry
from store.tables import LedgerTable
from store.words import LedgerKind


def put_policy(session: Session, agent: str, policy: Body) -> None:
    """Give an agent a policy."""
    _tell(session, agent, policy)


def take_back_policy(session: Session, agent: str) -> None:
    """Give an agent none again. Raises `Unknown` when she has none."""
    if agent not in policies(session):
        raise Unknown("policy of agent", agent)
    _tell(session, agent, None)


def policies(session: Session) -> dict[str, Body]:
    """Each agent's policy, of those that have one."""
    last = (
        select(func.max(LedgerTable.seq))
        .where(LedgerTable.kind == LedgerKind.POLICY)
        .group_by(LedgerTable.subject)
    )
    rows = session.scalars(select(LedgerTable).where(LedgerTable.seq.in_(last)))
    bodies = {row.subject: row.body.get("policy") for row in rows}
    return {agent: body for agent, body in bodies.items() if isinstance(body, dict)}


def _tell(session: Session, agent: str, policy: Body | None) -> None:
    told: dict[str, JsonValue] = {"policy": None if policy is None else dict(policy)}
    ledger.append(session, Entry(kind=LedgerKind.POLICY, agent=agent, context=None, subject=agent, body=told))
