"""Which daemon an agent belongs to, where several write to one PostgreSQL database.

* An agent's lease is an advisory lock of the very connection that writes: whoever loses the connection loses
  both, so nobody writes for an agent by a lease that is gone.
* PostgreSQL frees the leases of a process that ends, however it ends.
* A connection that was lost is made anew, and takes its leases again, all but those that another took meanwhile.
* A SQLite file has one writer, which every agent belongs to.
"""

import hashlib

from sqlalchemy import text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session


class Leases:
    """The agents that belong to this writer."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        """May there be other writers?"""
        self._held: frozenset[str] = frozenset()

    def holds(self, agent: str) -> bool:
        """Does the agent belong to this writer?"""
        return not self.shared or agent in self._held

    def hold(self, session: Session, agent: str) -> bool:
        """Take an agent that belongs to nobody; whether she belongs to this writer now. `session` writes."""
        if not self.holds(agent):
            taken = session.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": lease_key(agent)})
            self._held |= {agent} if taken else set()
        return self.holds(agent)

    def retake(self, connection: DBAPIConnection) -> None:
        """Take again, on a new connection, what the lost one held."""
        cursor, kept = connection.cursor(), set[str]()
        for agent in self._held:
            cursor.execute(f"SELECT pg_try_advisory_lock({lease_key(agent)})")
            row = cursor.fetchone()
            if row is not None and row[0]:
                kept.add(agent)
        connection.commit()
        cursor.close()
        self._held = frozenset(kept)


def lease_key(agent: str) -> int:
    """The number of an agent's advisory lock, 64 bits with a sign: no two agents' are ever the same."""
    return int.from_bytes(hashlib.sha256(f"agent {agent}".encode()).digest()[:8], "big", signed=True)
