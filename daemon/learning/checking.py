"""What a start holds the adapters on disk to, and what it clears away."""

import asyncio

from daemon.learning.snapshots import Snapshots
from store import adapters, leases
from store.store import Store


async def check_adapters(store: Store, snapshots: Snapshots) -> None:
    """Refuse adapters that were made for something else; delete what nothing names or is half written.

    Another lane's are that lane's to check. They are no strays here, as somebody may have copied them.

    Raises:
        OtherModel: another lane of the database serves another model.
        SnapshotDamaged: an agent's adapters are damaged, or were made for another model or rank.
    """
    await store.read(leases.require_same_model, snapshots.made_for)
    named: set[str] = set()
    agents = await store.read(adapters.agents_with_adapters)
    whose = await store.read(leases.leases_of, agents)
    for agent in agents:
        kept = await store.read(adapters.adapters_of, agent)
        if agent not in whose or whose[agent].lane == store.leases.lane:
            await asyncio.to_thread(snapshots.check, kept.shadow.snapshot)
        named |= {kept.shadow.snapshot, *(version.snapshot for version in kept.versions)}
    await asyncio.to_thread(snapshots.sweep, named)
