"""Forgetting while a service runs: one thing at a time, while whoever it is of learns nothing.

- Her lessons stop at their next segment, and wait with the others; she is served all along.
- It is done with the ledger in one transaction, and only if nothing was learned, promoted or rolled back since it
  was prepared. From her next turn on she is served with what was rebuilt, whose cache is its own.
"""

import asyncio
from collections.abc import Sequence

from daemon.config import Settings
from daemon.learning.adapters import AgentAdapters
from daemon.learning.forget import clean, takes_a_model
from daemon.learning.forget_child import prepare
from daemon.learning.intake import Intake
from daemon.learning.learner import Learner
from daemon.learning.leasing import Leasing
from daemon.serving.unbroken import Unbroken
from store import adapters as stored_adapters
from store import forget, scopes
from store.errors import Closed
from store.forget import Change
from store.scopes import Found, Scope
from store.store import Store


class LiveForget:
    """Forgets beside a lane."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        adapters: AgentAdapters,
        learner: Learner,
        intake: Intake,
        leasing: Leasing,
    ) -> None:
        self._settings = settings
        self._store = store
        self._adapters = adapters
        self._learner = learner
        self._intake = intake
        self._leasing = leasing
        self._one_forgets = asyncio.Lock()
        self._unbroken = Unbroken()
        self._preparing: asyncio.Future[list[Change]] | None = None
        self._closed = False

    async def find(self, scope: Scope) -> list[Found]:
        """What there is to forget. Raises as `store.scopes.find`."""
        return await self._store.read(scopes.find, scope)

    async def run(self, scope: Scope) -> list[Change]:
        """Forget it; returns what was changed. Goes on if whoever asked goes away.

        Raises:
            Unknown: there is no such thing.
            CannotForget: it is a signal by which others were weighed, or it cannot be done here.
            MovedOn: an adapter was promoted or rolled back meanwhile; nothing was forgotten.
            Elsewhere: an agent that it is of belongs to another lane.
            Closed: the service stops.
        """
        return await self._unbroken.run(self._run(scope))

    async def close(self) -> None:
        """End what is being prepared, and return once nothing goes on any more."""
        self._closed = True
        if self._preparing is not None:
            self._preparing.cancel()
        await self._unbroken.settled()

    async def _run(self, scope: Scope) -> list[Change]:
        async with self._one_forgets:
            agents = [each.agent for each in await self.find(scope)]
            for agent in agents:
                await self._leasing.require(agent)
            async with self._learner.still(agents):
                former = await self._store.read(stored_adapters.snapshots_named, agents)
                changes = await self._prepared(await self.find(scope))
                await self._done(scope, changes)
            await self._store.tend(lambda database: clean(database, self._settings, former=former))
            return changes

    async def _done(self, scope: Scope, changes: Sequence[Change]) -> None:
        async with self._intake.taking_up([change.found.agent for change in changes]):
            await self._store.write(forget.forget, scope, changes)
            for change in changes:
                if change.moved is not None:
                    await self._adapters.forget(change.found.agent)

    async def _prepared(self, found: Sequence[Found]) -> list[Change]:
        if self._closed:
            raise Closed("the service stops: nothing was forgotten")
        if not any(takes_a_model(each) for each in found):
            return [Change(each, (), (), None) for each in found]
        self._preparing = asyncio.ensure_future(prepare(self._settings, found))
        try:
            return await self._preparing
        except asyncio.CancelledError:
            raise Closed("the service stops: nothing was forgotten") from None
        finally:
            self._preparing = None
