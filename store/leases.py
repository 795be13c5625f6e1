"""Which lane an agent belongs to, where several write to one PostgreSQL database.

* An agent's lease is a row: the lane that has her, a token, and when it runs out by the database's clock. The lane
  renews it for as long as it lives.
* Whatever changes what an agent learns asks for her lease in the very transaction that changes it (`require`): a
  lane that lost it, or slept while it ran out, commits nothing.
* The token goes up whenever a lease is taken, so that an earlier process of the same lane has lost it too.
* A lease that ran out is for another lane to take only if that has the snapshot of the agent's shadow: a shadow
  whose bytes are in another's data directory is not gone on with.
* All lanes of a database serve one model: another one's takes no lease.
* A SQLite file has one writer, to whom every agent belongs: it holds no lease.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import exists, or_, select, text, update
from sqlalchemy.orm import Session

from store.errors import Elsewhere, OtherModel
from store.tables import AdapterTable, LeaseTable
from store.words import AdapterState

ALONE = "alone"
"""The lane of a writer that has not said which it is."""

_INFO = "leases"
_NOW_US = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")


@dataclass(frozen=True, slots=True)
class Lease:
    """Whose an agent is, and whether that lane still says so."""

    lane: str
    live: bool


class Leases:
    """The leases of one writer, as it knows them: the token of each agent that it has."""

    def __init__(self, lane: str, *, shared: bool) -> None:
        self.lane = lane
        self.shared = shared
        """May there be other writers?"""
        self._tokens: dict[str, int] = {}

    @classmethod
    def of(cls, session: Session) -> "Leases":
        """Those of the writer whose session it is."""
        leases = session.info[_INFO]
        assert isinstance(leases, Leases), f"a session with {leases!r}"
        return leases

    def as_info(self) -> dict[str, object]:
        """What a session is made with, for `of` to find."""
        return {_INFO: self}

    def holds(self, agent: str) -> bool:
        """Does the agent belong to this writer, as far as it knows?"""
        return not self.shared or agent in self._tokens

    def token(self, agent: str) -> int | None:
        """The token of the agent's lease, where this writer has it."""
        return self._tokens.get(agent)

    def keep(self, agent: str, token: int) -> None:
        """The agent belongs to this writer, by that token."""
        self._tokens[agent] = token

    def drop(self, agents: Collection[str]) -> None:
        """These belong to this writer no more."""
        for agent in agents:
            self._tokens.pop(agent, None)

    @property
    def agents(self) -> frozenset[str]:
        """The agents that belong to this writer by a lease."""
        return frozenset(self._tokens)


def require(session: Session, agent: str) -> None:
    """Raise `Elsewhere` unless the agent belongs to this writer now."""
    leases = Leases.of(session)
    if not leases.shared:
        return
    row = _row(session, agent)
    live = row is not None and row.expires_at_us > _now_us(session)
    if row is None or not live or row.lane != leases.lane or row.token != leases.token(agent):
        raise Elsewhere(agent, lane=None if row is None else row.lane, live=live)


def hold(
    session: Session, agent: str, *, seconds: float, made_for: Mapping[str, str], snapshot: str | None
) -> bool:
    """Take an agent for so many seconds; whether she belongs to this writer now.

    `snapshot` is the file of her shadow that this lane has, None where she has no shadow yet. Another lane's agent
    is taken only if her lease ran out, and only with that file. Raises `OtherModel`.
    """
    leases = Leases.of(session)
    if not leases.shared:
        return True
    row, now_us = _row(session, agent), _now_us(session)
    if row is not None and row.lane != leases.lane and row.expires_at_us > now_us:
        return False
    if _head(session, agent) != snapshot:
        return False
    require_same_model(session, made_for)
    token = 1 if row is None else row.token + 1
    taken = LeaseTable(agent=agent, lane=leases.lane, token=token, made_for=dict(made_for))
    taken.expires_at_us = now_us + int(seconds * 1_000_000)
    session.merge(taken)
    session.flush()
    leases.keep(agent, token)
    return True


def renew(session: Session, *, seconds: float) -> None:
    """Have every agent of this writer for so many seconds from now on. One that another took is dropped."""
    leases = Leases.of(session)
    rows = session.execute(select(LeaseTable.agent, LeaseTable.token).where(LeaseTable.lane == leases.lane))
    still = {row.agent for row in rows if row.token == leases.token(row.agent)}
    leases.drop(leases.agents - still)
    _expire_at(session, still, _now_us(session) + int(seconds * 1_000_000))


def release(session: Session) -> None:
    """Let every lease of this writer run out now: it is closing."""
    leases = Leases.of(session)
    renew(session, seconds=0)
    leases.drop(leases.agents)


def agents_of(session: Session, lane: str) -> list[str]:
    """The agents that belong to a lane, or did last."""
    return list(
        session.scalars(select(LeaseTable.agent).where(LeaseTable.lane == lane).order_by(LeaseTable.agent))
    )


def live_agents(session: Session) -> frozenset[str]:
    """The agents that belong to any lane now."""
    now_us = _now_us(session)
    return frozenset(session.scalars(select(LeaseTable.agent).where(LeaseTable.expires_at_us > now_us)))


def leases_of(session: Session, agents: Collection[str]) -> dict[str, Lease]:
    """Whose agents are; one that never belonged to any lane is left out."""
    rows = session.scalars(select(LeaseTable).where(LeaseTable.agent.in_(agents))).all()
    now_us = _now_us(session) if rows else 0
    return {row.agent: Lease(row.lane, row.expires_at_us > now_us) for row in rows}


def require_same_model(session: Session, made_for: Mapping[str, str]) -> None:
    """Raise `OtherModel` if another model's lane writes to this database, or adapters in it are of another."""
    if not Leases.of(session).shared:
        return
    live = LeaseTable.expires_at_us > _now_us(session)
    kept = exists().where(AdapterTable.agent == LeaseTable.agent)
    for row in session.scalars(select(LeaseTable).where(or_(live, kept)).order_by(LeaseTable.agent)):
        if row.made_for != dict(made_for):
            raise OtherModel(agent=row.agent, lane=row.lane, theirs=row.made_for, ours=made_for)


def _row(session: Session, agent: str) -> LeaseTable | None:
    return session.get(LeaseTable, agent, populate_existing=True)


def _head(session: Session, agent: str) -> str | None:
    mine = (AdapterTable.agent == agent, AdapterTable.state == AdapterState.SHADOW)
    return session.scalar(select(AdapterTable.snapshot).where(*mine))


def _expire_at(session: Session, agents: Collection[str], at_us: int) -> None:
    if agents:
        session.execute(update(LeaseTable).where(LeaseTable.agent.in_(agents)).values(expires_at_us=at_us))


def _now_us(session: Session) -> int:
    """The database's time now, not when the transaction began: it may have waited for the write lock since."""
    return int(session.scalar(_NOW_US) or 0)
