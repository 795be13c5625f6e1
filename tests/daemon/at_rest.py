"""A service before and after a load: what is made on demand and kept is made, and nothing goes on any more."""

import asyncio
import contextlib
import time

from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.daemon.conftest import Running
from tests.footprint import Footprint, footprint, make_kernels

FILL_SECONDS = 0.05
"""How long a pool's thread is kept busy, for the others to be made meanwhile."""


class Rest:
    """How a service is at rest: made before the first client comes."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._own_tasks = len(asyncio.all_tasks())

    async def make_what_is_kept(self) -> None:
        """Have every thread, connection and kernel made that may be made later."""
        many = range(64)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, FILL_SECONDS) for _ in many))
        await asyncio.gather(*(self._running.store.read(_read_slowly) for _ in many))
        await self._running.service.lane.call(lambda lane: make_kernels(lane.engine.model.model))

    async def reached(self) -> Footprint:
        """Wait until nothing goes on but what went on before the first client came; what is held then."""

        async def quiet() -> bool:
            busy = await self._running.service.lane.call(lambda lane: lane.serving or lane.learning)
            return not busy and len(asyncio.all_tasks()) <= self._own_tasks

        with contextlib.suppress(TimeoutError):
            await self._running.until(quiet)
        assert len(asyncio.all_tasks()) <= self._own_tasks, asyncio.all_tasks()
        assert self._running.service._parts is not None
        await self._running.service._parts.learner.settled()
        return footprint()


def _read_slowly(session: Session) -> None:
    session.execute(text("SELECT 1"))
    time.sleep(FILL_SECONDS)
