"""A service's life as a process: the ledger opened for it, signals heard, its end said.

A first SIGINT or SIGTERM lets what is open come to its end, a second cuts it off. A service that fails stops, and
who runs it is told why.
"""

import asyncio
import gc
import logging
import signal as os_signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from daemon.config import Settings
from daemon.lane_name import lane_name
from daemon.service import Say, Service
from store.store import Store

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter from another that wants it: Python's own 5 ms add up."""


class ServiceFailed(Exception):
    """The service stopped by itself."""


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; a second one has what is still open be cut off at once.

    Raises:
        ServiceFailed: the lane or one of the service's tasks failed.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.run(_serve_until_signalled(settings))


async def _serve_until_signalled(settings: Settings) -> None:
    stop, hurry, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (os_signal.SIGINT, os_signal.SIGTERM):
        loop.add_signal_handler(number, told)
    async with running(settings, stop, hurry, say=_say) as url:
        _set_apart()
        _say(f"serving at {url}")
        await stop.wait()
        _say("stopping")


def _set_apart() -> None:
    """Have Python's collector leave alone what is there for good: half a million objects of libraries and model.

    To go through all of them takes it a third of a second, in which nobody is served.
    """
    gc.collect()
    gc.freeze()


def open_store(settings: Settings) -> Store:
    """The ledger, made if there is none, under the name of the lane that has the data directory."""
    return Store.open(settings.ledger, create=True, lane=lane_name(settings.data_dir))


@asynccontextmanager
async def running(
    settings: Settings, stop: asyncio.Event, hurry: asyncio.Event, *, say: Say
) -> AsyncIterator[str]:
    """A running service; gives its URL. `stop` is set if it fails; set `hurry` for its end not to wait for anyone.

    Raises:
        ServiceFailed: the lane or a task failed while it ran.
    """
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    store = await asyncio.to_thread(open_store, settings)
    try:
        service = Service(settings, store, say=say, on_failure=failed, hurry=hurry)
        async with service.serving() as url:
            yield url
    finally:
        await asyncio.to_thread(store.close)
    if failures:
        raise ServiceFailed(f"the service stopped: {failures[0]}") from failures[0]


def _say(line: str) -> None:
    sys.stderr.write(f"ridealong: {line}\n")
    sys.stderr.flush()
