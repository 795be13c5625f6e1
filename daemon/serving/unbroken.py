"""Work that goes to its end even if whoever asked for it goes away half-way."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Unbroken:
    """Owns such work until it is done."""

    def __init__(self) -> None:
        self._work: set[asyncio.Future[Any]] = set()

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Do the work; returns what it returns, raises what it raises."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Return once all of it is done."""
        await asyncio.gather(*self._work, return_exceptions=True)
