"""Agents' leases, where several lanes write to one database: taken, renewed, and given up.

- An agent is taken when there is first something to settle about a turn that this lane served, and stays for as
  long as the lane lives: what she learns is planned and trained here, whoever served the turn and took the signal.
- Only a lane that has her snapshots takes an agent. What is in another's data directory stays that lane's, however
  long it is away, until somebody copies them; what waits for that lane too long is ended by another.
- What a lane took it takes up: her lessons and signals. What it lost it drops, and it takes her again if it can.
- Where there are no other lanes, every agent belongs to this one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from daemon.config import Settings
from daemon.learning.policies import Policies
from daemon.learning.snapshots import Snapshots
from signals.records import Relevance, Signal
from signals.refusals import RefusalCode
from store import abandoned, leases, turns
from store import adapters as stored_adapters
from store.clock import now_us
from store.errors import Elsewhere, StoreError, Unknown
from store.store import Store

logger = logging.getLogger(__name__)
Done = Callable[[str], Awaitable[None]]

RENEWALS = 3
"""How often a lease is renewed before it would run out: one that fails is not the end of it."""


class Leasing:
    """Whose agents are. `on_taken` and `on_lost` are told of each that this lane takes or loses."""

    def __init__(self, store: Store, snapshots: Snapshots, policies: Policies, settings: Settings) -> None:
        self._store = store
        self._snapshots = snapshots
        self._policies = policies
        self._seconds = settings.lease_seconds
        self._ttl_seconds = settings.lesson_ttl_seconds
        self._taking = asyncio.Lock()
        self._mine: set[str] = set()
        self._wanted: set[str] = set()
        self.on_taken: Done | None = None
        self.on_lost: Done | None = None

    @property
    def shared(self) -> bool:
        """May there be other lanes?"""
        return self._store.leases.shared

    async def begin(self) -> None:
        """Take the agents that belong to this lane since an earlier start."""
        self._wanted |= set(await self._store.read(leases.agents_of, self._store.leases.lane))
        await self._take_wanted()

    async def hold(self, agent: str) -> bool:
        """Does the agent belong to this lane? She is taken if she belongs to none and her snapshots are here."""
        if self._store.leases.holds(agent):
            return True
        async with self._taking:
            if not self._store.leases.holds(agent):
                return await self._take(agent)
        return True

    async def require(self, agent: str) -> None:
        """As `hold`, for what is done to an agent's adapters by hand.

        Raises:
            Elsewhere: she does not belong to this lane.
        """
        if not await self.hold(agent):
            lease = (await self._store.read(leases.leases_of, [agent])).get(agent)
            lane, live = (None, False) if lease is None else (lease.lane, lease.live)
            raise Elsewhere(agent, lane=lane, live=live)

    async def mine(self, given: Sequence[Signal], *, heard: bool = False) -> list[Signal]:
        """Those signals that are for this lane to settle; `heard`, if another took them.

        Of an agent who belongs to nobody, those about turns that this lane served; what names no turn is for the
        lane that took it.
        """
        if not (self.shared and given):
            return list(given)
        named = {signal.turn for signal in given if not isinstance(signal, Relevance) and signal.turn is not None}
        lanes = await self._store.read(turns.lanes_of, named)

        def is_here(signal: Signal) -> bool:
            turn = None if isinstance(signal, Relevance) else signal.turn
            lane = lanes.get(turn or "")
            return lane == self._store.leases.lane or (lane is None and not heard)

        candidates = {signal.agent for signal in given if is_here(signal)}
        free = {agent for agent in candidates if await self._may_settle(agent)}
        return [
            signal
            for signal in given
            if self._store.leases.holds(signal.agent) or (signal.agent in free and is_here(signal))
        ]

    async def keep(self) -> None:
        """Renew what this lane has for as long as the service runs."""
        while self.shared:
            await asyncio.sleep(self._seconds / RENEWALS)
            try:
                await self._store.write(leases.renew, seconds=self._seconds)
                await self._drop_lost()
                await self._take_wanted()
                await self._end_abandoned()
            except StoreError:  # the database is away: whoever finds the leases run out takes them
                logger.exception("leases could not be renewed")

    async def end(self) -> None:
        """Have no agent any more: others may take those whose snapshots they have."""
        if self.shared:
            await self._store.write(leases.release)

    async def _may_settle(self, agent: str) -> bool:
        """Does the agent belong to this lane now? One that does not learn may belong to none."""
        if self._policies.of(agent).learn:
            try:
                return await self.hold(agent)
            except Exception:  # one agent's border: her signals are taken up with her
                logger.exception("agent %s could not be taken", agent)
                return False
        lease = (await self._store.read(leases.leases_of, [agent])).get(agent)
        return lease is None or lease.lane == self._store.leases.lane

    async def _drop_lost(self) -> None:
        lost = self._mine - self._store.leases.agents
        self._mine -= lost
        self._wanted |= lost
        for agent in sorted(lost):
            logger.warning("agent %s belongs to this lane no more: its lease ran out or was taken", agent)
            assert self.on_lost is not None, "nobody is told of what is lost"
            await self.on_lost(agent)

    async def _take_wanted(self) -> None:
        standing = await self._store.read(leases.leases_of, self._wanted)
        for agent in sorted(self._wanted):
            lease = standing.get(agent)
            if lease is None or not lease.live or lease.lane == self._store.leases.lane:
                await self.hold(agent)

    async def _end_abandoned(self) -> None:
        """End what has waited too long for lanes that are away."""
        before_us = now_us() - int(self._ttl_seconds * 1_000_000)
        if not await self._store.read(abandoned.any_abandoned, before_us=before_us):
            return
        message = (
            f"It waited {self._ttl_seconds:.0f} seconds for the lane that the agent belongs to, which is away. "
            "Send it again when that lane serves, or when another has her snapshots."
        )
        code = RefusalCode.EXPIRED
        await self._store.write(abandoned.end_abandoned, before_us=before_us, code=code, message=message)

    async def _take(self, agent: str) -> bool:
        head = await self._head(agent)
        if head is None:
            return False
        seconds, made_for, snapshot = self._seconds, self._snapshots.made_for, head or None
        taken = await self._store.write(leases.hold, agent, seconds=seconds, made_for=made_for, snapshot=snapshot)
        if taken:
            self._mine.add(agent)
            self._wanted.discard(agent)
            assert self.on_taken is not None, "nobody is told of what is taken"
            await self.on_taken(agent)
        return taken

    async def _head(self, agent: str) -> str | None:
        """The file of the agent's shadow, empty if she has none yet; None, if a snapshot of hers is not here."""
        try:
            kept = await self._store.read(stored_adapters.adapters_of, agent)
        except Unknown:
            return ""
        named = {kept.shadow.snapshot, *(version.snapshot for version in kept.versions)}
        here: Collection[str] = await asyncio.to_thread(self._snapshots.here, named)
        return kept.shadow.snapshot if set(here) == named else None
