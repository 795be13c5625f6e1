"""Each agent's adapters in the lane: her shadow, and the stable set she is served with.

- What an agent has is the store's to say; this brings the lane in line with it, when it is first needed.
- The lane knows adapters by names made here: one shadow an agent, one stable set a version.
- A promotion serves the shadow's last committed snapshot, never a step that the ledger doesn't have.
- A rollback serves an earlier version again and moves the shadow back to it, moments and all.
"""

import asyncio
import hashlib
from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from daemon.http.errors import Unavailable
from daemon.learning.exports import aside_of, drop, place
from daemon.learning.snapshots import Snapshots
from daemon.learning.stables import BASE_STABLE, Stable, is_lora, lora_lane_name
from daemon.serving.lane_thread import LaneThread
from daemon.serving.lora_adapters import LoraAdapters
from daemon.serving.unbroken import Unbroken
from engine.lane import Lane
from engine.slots import BASE
from store import adapters as stored
from store import leases
from store.errors import Unknown
from store.records import Adapter, Adapters, Turn
from store.store import Store


class AgentAdapters:
    """Keeps the lane's adapters in line with the store's."""

    def __init__(self, store: Store, lane: LaneThread, snapshots: Snapshots, loras: LoraAdapters) -> None:
        self._store = store
        self._loras = loras
        self._lane = lane
        self._snapshots = snapshots
        self._stables: dict[str, Stable] = {}
        self._shadows: set[str] = set()
        self._changing = asyncio.Lock()
        self._unbroken = Unbroken()

    async def stable(self, agent: str) -> Stable:
        """The stable set the agent is served with now, loaded into the lane; without one of her own the lane's."""
        async with self._changing:
            if agent not in self._stables:
                kept = await self._kept(agent)
                self._stables[agent] = BASE_STABLE if kept is None else await self._install(kept.stable)
            own = self._stables[agent]
        return await self._loras.stable() if own == BASE_STABLE else own

    async def shadow(self, agent: str) -> str:
        """The lane's name of the agent's shadow, which is made, or loaded from its head, if it isn't there."""
        async with self._changing:
            await self._open_shadow(agent)
        return shadow_name(agent)

    async def forget(self, agent: str) -> None:
        """Read the agent's adapters anew when they are needed again: this lane's may be behind."""
        async with self._changing:
            self._shadows.discard(agent)
            self._stables.pop(agent, None)

    async def forget_stable(self, agent: str) -> None:
        """Read anew what the agent is served with: another lane may have changed it."""
        async with self._changing:
            self._stables.pop(agent, None)

    async def cancel_lessons(self, lessons: Collection[str]) -> None:
        """End lessons that the lane has and that have not taken their step."""
        await self._lane.call(lambda lane: lane.cancel_lessons(lessons))

    async def restore_head(self, agent: str, *, cancelling: Collection[str]) -> None:
        """Put the lane's shadow back to what the ledger says it is, once nothing walks on it any more."""
        kept = await self._store.read(stored.adapters_of, agent)
        await self._restore(agent, await self._read(kept.shadow.snapshot), cancelling=cancelling)

    async def promote(self, agent: str) -> int:
        """Serve the agent's shadow, as last committed, from her next turn on; returns the version.

        Raises:
            Unknown: the agent has no adapter.
            NothingToPromote: the shadow is what is served.
        """
        return await self._unbroken.run(self._promote(agent))

    async def check_version(self, agent: str, version: int) -> None:
        """Is there such a version?

        Raises:
            Unknown: there is no such agent or version.
        """
        kept = await self._store.read(stored.adapters_of, agent)
        if version not in {row.version for row in kept.versions}:
            raise Unknown(f"version {version} of agent", agent)

    async def rollback(self, agent: str, version: int) -> Adapters:
        """Serve a version again, and learn on from it. No lesson of the agent may be walking.

        Raises:
            Unknown: there is no such agent or version.
        """
        return await self._unbroken.run(self._rollback(agent, version))

    async def export(self, agent: str, directory: Path, *, version: int | None) -> Adapter:
        """Write a version (else the shadow's head) of the agent's as a PEFT adapter directory.

        Raises:
            Unknown: there is no such agent or version.
        """
        kept = await self._store.read(stored.adapters_of, agent)
        found = [kept.shadow] if version is None else [row for row in kept.versions if row.version == version]
        if not found:
            raise Unknown(f"version {version} of agent", agent)
        tensors, name = await self._read(found[0].snapshot), f"export-{found[0].sha[:16]}"
        aside = await asyncio.to_thread(aside_of, directory)

        def write(lane: Lane) -> None:
            lane.engine.bank.load(name, tensors)
            try:
                lane.engine.bank.export(name, aside)
            finally:
                lane.engine.bank.drop(name)

        try:
            await self._lane.call(write)
            await asyncio.to_thread(place, aside, directory)
        finally:
            await asyncio.to_thread(drop, aside)
        return found[0]

    async def lane_name(self, turn: Turn) -> str:
        """The lane's name of the stable set that a turn was served with, loaded or not."""
        label = turn.adapter
        if is_lora(label):  # another lane's number is another adapter here: nothing is served under this name
            return lora_lane_name(label) if turn.lane == self._store.leases.lane else f"{turn.lane}-{label}"
        agent, _, version = label.rpartition("@")
        if label == BASE or not agent:
            return BASE
        kept = await self._store.read(stored.adapters_of, agent)
        return next(_stable_name(row) for row in kept.versions if row.version == int(version))

    async def _promote(self, agent: str) -> int:
        async with self._changing:
            kept = await self._store.read(stored.adapters_of, agent)
            version = await self._store.write(stored.promote, agent, sha=kept.shadow.sha)
            self._stables.pop(agent, None)
        return version

    async def _rollback(self, agent: str, version: int) -> Adapters:
        async with self._changing:
            await self._open_shadow(agent)
            kept = await self._store.write(stored.rollback, agent, version=version)
            self._stables.pop(agent, None)
            await self._restore(agent, await self._read(kept.shadow.snapshot), cancelling=())
        return kept

    async def _kept(self, agent: str) -> Adapters | None:
        try:
            return await self._store.read(stored.adapters_of, agent)
        except Unknown:
            return None

    async def _install(self, adapter: Adapter) -> Stable:
        """Load a version into the lane. Version 0 is the base: its term is zero."""
        if not adapter.version:
            return BASE_STABLE
        name = _stable_name(adapter)
        tensors = await self._served_here(adapter)

        keep = {name, *self._loras.kept, *(stable.lane_name for stable in self._stables.values())}

        def load(lane: Lane) -> None:
            lane.retire_stables(keep)
            if name not in lane.engine.bank:
                lane.engine.bank.load(name, tensors)

        await self._lane.call(load)
        return Stable(name, f"{adapter.agent}@{adapter.version}")

    async def _open_shadow(self, agent: str) -> None:
        name, seed = shadow_name(agent), _seed(agent)
        if agent in self._shadows:
            return
        kept = await self._kept(agent)
        tensors = None if kept is None else await self._read(kept.shadow.snapshot)

        def open_shadow(lane: Lane) -> tuple[str, dict[str, Tensor]]:
            shadow = lane.engine.shadows.get(name) or lane.engine.add_shadow(name, seed=seed)
            if tensors is not None:
                shadow.restore(tensors)
            return shadow.sha256(), shadow.snapshot()

        sha, snapshot = await self._lane.call(open_shadow)
        if kept is None:
            file = await asyncio.to_thread(self._snapshots.write, snapshot)
            await self._store.write(stored.open_adapter, agent, sha=sha, snapshot=file)
        self._shadows.add(agent)

    async def _restore(self, agent: str, tensors: dict[str, Tensor], *, cancelling: Collection[str]) -> None:
        name = shadow_name(agent)

        def restore(lane: Lane) -> None:
            lane.cancel_lessons(cancelling)
            lane.engine.shadows[name].restore(tensors)

        await self._lane.call(restore)

    async def _served_here(self, adapter: Adapter) -> dict[str, Tensor]:
        """A version to be served.

        Raises:
            Unavailable: it is in another lane's data directory.
        """
        lease = (await self._store.read(leases.leases_of, [adapter.agent])).get(adapter.agent)
        is_here = self._snapshots.here([adapter.snapshot])
        if lease is not None and lease.lane != self._store.leases.lane and not is_here:
            raise Unavailable(
                f"{adapter.agent} is served with version {adapter.version}, whose snapshot is in the data "
                f"directory of lane {lease.lane}: ask that lane, or copy {adapter.snapshot} from there to here",
                code="adapter_elsewhere",
            )
        return await self._read(adapter.snapshot)

    async def _read(self, snapshot: str) -> dict[str, Tensor]:
        return await asyncio.to_thread(self._snapshots.read, snapshot)


def shadow_name(agent: str) -> str:
    """The lane's name of an agent's shadow."""
    return f"shadow-{hashlib.sha256(agent.encode()).hexdigest()[:16]}"


def _stable_name(adapter: Adapter) -> str:
    return f"stable-{adapter.sha[:16]}" if adapter.version else BASE


def _seed(agent: str) -> int:
    """What an agent's first shadow is made from: the same on every machine."""
    return int.from_bytes(hashlib.sha256(agent.encode()).digest()[:6], "big")
