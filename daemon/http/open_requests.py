"""The requests that are open, and how they end when the service stops.

- From then on a new one is refused; those that are open go on for a while, and are then cut off; at once
  if it hurries.
- A request counts until its answer is written, or its handler has seen to its turns.
"""

import asyncio

from aiohttp import web

from daemon.http.error_answers import Handler
from daemon.http.errors import Unavailable

CUT_SECONDS = 10.0
"""How long handlers that were cut off may take to record their turns: a step, and a transaction."""


class OpenRequests:
    """Counts requests in, and sees them out."""

    def __init__(self, *, drain_seconds: float, hurry: asyncio.Event) -> None:
        self._drain_seconds = drain_seconds
        self._hurry = hurry
        self._tasks: set[asyncio.Task[object]] = set()
        self._draining = False

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request in.

        Raises:
            Unavailable: the service is stopping.
        """
        if self._draining:
            raise Unavailable(
                "the service is stopping and takes nothing new; ask again when it has been started again",
                retry_after_seconds=self._drain_seconds,
            )
        task = asyncio.current_task()
        assert task is not None, "a request outside any task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await handler(request)

    def refuse_new(self) -> None:
        """From now on take nothing new."""
        self._draining = True

    async def end(self) -> None:
        """Wait for those that are open, then cut off those that still are."""
        assert self._draining, "new requests are still taken"
        if self._tasks:
            await self._drained()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CUT_SECONDS)

    async def _drained(self) -> None:
        """Return when all have ended, after the time they have, or as soon as it hurries."""
        hurried = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(asyncio.wait(self._tasks))
        waits = {hurried, ended}
        await asyncio.wait(waits, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
