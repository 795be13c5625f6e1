"""Exports: which adapters of whose were written out, kept in the ledger alone.

One whose row is archived is said again while it is made of what its agent has, so that forgetting still finds it.
"""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from store import ledger
from store.columns import JsonValue
from store.records import Entry
from store.tables import AdapterTable, LedgerTable, StepTable
from store.words import LedgerKind


def tell_export(session: Session, agent: str, *, name: str, version: int | None, sha: str) -> None:
    """An adapter of that hash, a version or the shadow, is in the directory of that name, under the exports."""
    _tell(session, agent, {"version": version, "sha": sha, "name": name})


def exports_no_more_hers(session: Session, agent: str) -> list[tuple[str, str]]:
    """The agent's exports that are made of a shadow that was never hers, or is hers no more: name and hash."""
    hers = _hashes(session, agent)
    bodies = session.scalars(select(LedgerTable.body).where(_IS_EXPORT, LedgerTable.agent == agent))
    return [(str(body["name"]), str(body["sha"])) for body in bodies if body["sha"] not in hers]


def exports_through(session: Session, seq: int) -> Sequence[LedgerTable]:
    """The rows up to that one which tell of exports."""
    return session.scalars(
        select(LedgerTable).where(_IS_EXPORT, LedgerTable.seq <= seq).order_by(LedgerTable.seq)
    ).all()


def tell_again(session: Session, rows: Sequence[LedgerTable]) -> None:
    """Say again what archived rows told of exports, where it still is of what their agents have."""
    hers = {agent: _hashes(session, agent) for agent in {row.agent for row in rows}}
    for row in rows:
        if row.body.get("sha") in hers[row.agent]:
            _tell(session, row.agent, {"first_told": row.seq} | row.body)


_IS_EXPORT = LedgerTable.kind == LedgerKind.EXPORT


def _hashes(session: Session, agent: str) -> set[str]:
    """What an agent's shadow is and was, and her versions are."""
    hers = {*session.scalars(select(StepTable.shadow_before).where(StepTable.agent == agent))}
    hers |= {*session.scalars(select(StepTable.shadow_after).where(StepTable.agent == agent))}
    return hers | {*session.scalars(select(AdapterTable.sha).where(AdapterTable.agent == agent))}


def _tell(session: Session, agent: str, body: dict[str, JsonValue]) -> None:
    ledger.append(session, Entry(kind=LedgerKind.EXPORT, agent=agent, context=None, subject=agent, body=body))
