"""Adapters: an agent's shadow, the versions made of it, and which of them is served.

* Versions are counted up and never removed or reused; version 0 is what the agent began with.
* A promotion names the shadow it means by its hash, so a step committed meanwhile is not promoted unseen.
* A rollback serves a version again and moves the shadow back to it: later steps stay in the record, and are
  no longer in the adapter.
"""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store import leases, ledger
from store.clock import now_us
from store.columns import JsonValue
from store.errors import DoesNotFollow, NothingToPromote, Unknown
from store.records import Adapter, Adapters, Entry
from store.rows import record_of
from store.tables import AdapterTable
from store.words import AdapterState, LedgerKind


def open_adapter(session: Session, agent: str, *, sha: str, snapshot: str) -> Adapters:
    """The agent's adapters as they stand; begun as a shadow and version 0 of that hash when it has none."""
    leases.require(session, agent)
    if _one(session, agent, AdapterState.SHADOW) is None:
        begun = {
            "agent": agent,
            "sha": sha,
            "snapshot": snapshot,
            "step_number": 0,
            "created_at_us": now_us(),
        }
        session.add(AdapterTable(**begun, state=AdapterState.SHADOW))
        session.add(AdapterTable(**begun, state=AdapterState.STABLE, version=0))
        session.flush()
        _tell(session, LedgerKind.PROMOTION, agent, version=0, sha=sha, snapshot=snapshot)
    return adapters_of(session, agent)


def promote(session: Session, agent: str, *, sha: str) -> int:
    """Make the shadow of that hash the next version, and the one served; gives its number.

    Raises `Unknown` when the agent has no adapter, `DoesNotFollow` when that is no longer the shadow,
    `NothingToPromote` when it is what is served already, and `Elsewhere` when she is not this lane's.
    """
    leases.require(session, agent)
    shadow, stable = shadow_row(session, agent), _stable_row(session, agent)
    if sha != shadow.sha:
        raise DoesNotFollow(agent=agent, given=sha, head=shadow.sha)
    if sha == stable.sha:
        raise NothingToPromote(f"agent {agent!r}: the shadow is version {stable.version}: learn something first")
    version = _last_version(session, agent) + 1
    stable.state = AdapterState.KEPT
    session.flush()  # the one stable row must give way before the next is there
    session.add(_version_row(shadow, version))
    session.flush()
    told: dict[str, JsonValue] = {"version": version, "sha": sha, "snapshot": shadow.snapshot}
    _tell(session, LedgerKind.PROMOTION, agent, **told, step_number=shadow.step_number, replaces=stable.version)
    return version


def rollback(session: Session, agent: str, *, version: int) -> Adapters:
    """Serve a version again, and go on learning from it. Raises `Unknown` or `Elsewhere`."""
    leases.require(session, agent)
    shadow, stable = shadow_row(session, agent), _stable_row(session, agent)
    target = _version(session, agent, version)
    told: dict[str, JsonValue] = {"version": version, "replaces": stable.version, "shadow_before": shadow.sha}
    stable.state = AdapterState.KEPT
    session.flush()  # the one stable row must give way before the next is there
    target.state = AdapterState.STABLE
    shadow.sha, shadow.snapshot, shadow.step_number = target.sha, target.snapshot, target.step_number
    shadow.created_at_us = now_us()
    session.flush()
    _tell(session, LedgerKind.ROLLBACK, agent, **told, shadow_after=target.sha, snapshot=target.snapshot)
    return adapters_of(session, agent)


def adapters_of(session: Session, agent: str) -> Adapters:
    """The agent's shadow, stable version and history. Raises `Unknown` when it has none."""
    numbered = select(AdapterTable).where(AdapterTable.agent == agent, AdapterTable.version.is_not(None))
    versions = session.scalars(numbered.order_by(AdapterTable.version))
    return Adapters(
        shadow=record_of(Adapter, shadow_row(session, agent)),
        stable=record_of(Adapter, _stable_row(session, agent)),
        versions=tuple(record_of(Adapter, row) for row in versions),
    )


def agents_with_adapters(session: Session) -> list[str]:
    """Every agent that has a shadow, by name."""
    shadows = select(AdapterTable.agent).where(AdapterTable.state == AdapterState.SHADOW)
    return list(session.scalars(shadows.order_by(AdapterTable.agent)))


def snapshots_named(session: Session, agents: Collection[str] | None = None) -> set[str]:
    """The snapshots that adapters are made of: those agents', else everyone's."""
    named = select(AdapterTable.snapshot)
    return set(session.scalars(named if agents is None else named.where(AdapterTable.agent.in_(agents))))


def shadow_row(session: Session, agent: str) -> AdapterTable:
    """The row of the agent's shadow. Raises `Unknown` when it has none."""
    row = _one(session, agent, AdapterState.SHADOW)
    if row is None:
        raise Unknown("adapter of agent", agent)
    return row


def _stable_row(session: Session, agent: str) -> AdapterTable:
    row = _one(session, agent, AdapterState.STABLE)
    if row is None:
        raise Unknown("stable adapter of agent", agent)
    return row


def _one(session: Session, agent: str, state: AdapterState) -> AdapterTable | None:
    return session.scalar(select(AdapterTable).where(AdapterTable.agent == agent, AdapterTable.state == state))


def _version(session: Session, agent: str, version: int) -> AdapterTable:
    mine = select(AdapterTable).where(AdapterTable.agent == agent, AdapterTable.version == version)
    row = session.scalar(mine)
    if row is None:
        raise Unknown(f"version {version} of agent", agent)
    return row


def _last_version(session: Session, agent: str) -> int:
    last = session.scalar(select(func.max(AdapterTable.version)).where(AdapterTable.agent == agent))
    assert last is not None, f"agent {agent} has no version"
    return last


def _version_row(shadow: AdapterTable, version: int) -> AdapterTable:
    return AdapterTable(
        agent=shadow.agent,
        state=AdapterState.STABLE,
        version=version,
        sha=shadow.sha,
        snapshot=shadow.snapshot,
        step_number=shadow.step_number,
        created_at_us=now_us(),
    )


def _tell(session: Session, kind: LedgerKind, agent: str, **body: JsonValue) -> None:
    ledger.append(session, Entry(kind=kind, agent=agent, context=None, subject=agent, body=body))
