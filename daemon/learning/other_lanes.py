"""What other lanes write to the same database, heard here: signals of this lane's agents, policies, promotions.

The ledger tells of all of it, so it is looked at now and then for rows that others appended. What is heard twice,
or was read at the start already, changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence

from daemon.learning.adapters import AgentAdapters
from daemon.learning.boarding import Boarding
from daemon.learning.intake import Intake
from daemon.learning.policies import Policies
from store.errors import StorageFailed
from store.records import LedgerRow
from store.store import Store
from store.words import LedgerKind, SignalState

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often the ledger is looked at: a question by its primary key, answered in a millisecond."""

AWAY_SECONDS = 5.0
"""How long until it is looked at again when the database does not answer."""

_SERVED_ANEW = frozenset({LedgerKind.PROMOTION, LedgerKind.ROLLBACK, LedgerKind.FORGOT})
"""After these an agent may be served with something else."""


class OtherLanes:
    """Hears other lanes. Made on the event loop that it serves."""

    def __init__(
        self, store: Store, intake: Intake, adapters: AgentAdapters, policies: Policies, boarding: Boarding
    ) -> None:
        self._store = store
        self._intake = intake
        self._adapters = adapters
        self._policies = policies
        self._boarding = boarding
        self._heard: asyncio.Queue[Sequence[LedgerRow]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(rows: Sequence[LedgerRow]) -> None:
            loop.call_soon_threadsafe(self._heard.put_nowait, rows)

        store.on_others(tell)

    async def look(self) -> None:
        """Look for what others wrote for as long as the service runs."""
        while self._store.leases.shared:
            try:
                await self._store.catch_up()
                await asyncio.sleep(LOOK_SECONDS)
            except StorageFailed as error:
                logger.warning("what other lanes write is not seen: %s", error)
                await asyncio.sleep(AWAY_SECONDS)

    async def listen(self) -> None:
        """Take what others wrote for as long as the service runs."""
        while True:
            rows = await self._heard.get()
            try:
                await self._take(rows)
            except Exception:  # the border of what was heard together: a start finds all of it
                logger.exception("what other lanes wrote could not be taken up")

    async def _take(self, rows: Sequence[LedgerRow]) -> None:
        for agent in {row.agent for row in rows if row.kind is LedgerKind.POLICY}:
            await self._policies.load()
            await self._intake.weigh_anew(agent)
        for agent in {row.agent for row in rows if row.kind in _SERVED_ANEW}:
            await self._adapters.forget_stable(agent)
        signals = [row.subject for row in rows if row.kind is LedgerKind.SIGNAL and _is_new(row)]
        if signals:
            await self._intake.hear(signals)
            self._boarding.stir()


def _is_new(row: LedgerRow) -> bool:
    """Has a signal come, rather than been applied?"""
    return row.body.get("state") == SignalState.RECEIVED
