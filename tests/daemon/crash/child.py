"""A process that has torch and a model in memory, and forks a service for each line it is told.

It speaks JSON, a line each way at a time: a `Life` in; then where the service is, if it comes to serve, and how it
ended.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import event

import daemon.learning.snapshots as snapshots_module
import daemon.serving.loading as loading_module
import store.database as database_module
from daemon.config import Settings
from daemon.learning import disk
from daemon.running import open_store
from daemon.service import Service
from engine.lora import tensors_sha256
from store import adapters as stored_adapters
from store.store import Store
from tests.daemon.crash import points as python_points
from tests.daemon.crash import sqlite as sqlite_points
from tests.daemon.crash.durable import Durable
from tests.daemon.crash.forks import status_of_fork, the_model
from tests.daemon.crash.points import Points

LONGEST_LIFE_SECONDS = 60
AGENT = "ada"


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a service: where, at which point it dies, and what to spoil in it."""

    data_dir: str
    notes: str
    """A directory beside it: `killed` (the point's kind), or `points` (all kinds, where it lived on), `image`."""
    kill_at: int | None = None
    image: bool = False
    spoil: list[str] = field(default_factory=list)
    """What is left out: `full` (SQLite's), `file` or `folder` (the snapshot's syncs)."""


def main() -> None:
    """Fork until there are no more lines."""
    model = the_model()
    loading_module.load_model = lambda *_given, **_options: model  # type: ignore[attr-defined]
    _say(ready=True)
    for line in sys.stdin:
        life = Life(**json.loads(line))
        _say(ended=status_of_fork(partial(_status_of, life)))


def _status_of(life: Life) -> int:
    signal.alarm(LONGEST_LIFE_SECONDS)
    try:
        asyncio.run(_live(life))
    except Exception:  # the border of a forked process, which must not go on as its parent does
        traceback.print_exc()
        return 4
    return 0


async def _live(life: Life) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    for name in life.spoil:
        _SPOIL[name]()
    points = _watch(life)
    settings = Settings(
        data_dir=Path(life.data_dir),
        model="tiny-chat",
        port=0,
        ctx=256,
        slots=2,
        learn=(AGENT,),
        lr=1e-2,
        idle_seconds=3600,
        repack="off",
        drain_seconds=5,
    )
    had_ledger = (settings.data_dir / "ledger.db").exists()
    store = open_store(settings)
    failed: list[BaseException] = []
    service = Service(settings, store, say=lambda _line: None, on_failure=failed.append, hurry=hurry)
    async with service.serving() as url:
        _say(url=url, process=os.getpid(), shadow=await _shadow(service, store) if had_ledger else None)
        await stop.wait()
    store.close()
    assert not failed, failed
    (Path(life.notes) / "points").write_text(json.dumps(points.reached()))


def _watch(life: Life) -> Points:
    root, notes = Path(life.data_dir), Path(life.notes)
    durable = Durable(root, notes / "image") if life.image else None
    points = Points(root, kill_at=life.kill_at, note=notes / "killed", durable=durable)
    python_points.install(points)
    sqlite_points.install(points)
    return points


async def _shadow(service: Service, store: Store) -> str | None:
    """The hash of the agent's shadow with its moments, as the lane has it; without one nothing."""
    if AGENT not in await store.read(stored_adapters.agents_with_adapters):
        return None
    assert service._parts is not None
    name = await service._parts.boarding._adapters.shadow(AGENT)
    return await service.lane.call(lambda lane: tensors_sha256(lane.engine.shadows[name].snapshot()))


def _without_full() -> None:
    prepare = database_module._prepare_sqlite

    def normal(engine: Any, *, writes: bool) -> None:
        prepare(engine, writes=writes)
        event.listen(engine, "connect", lambda own, _: own.execute("PRAGMA synchronous = NORMAL"))

    database_module._prepare_sqlite = normal


def _without_sync(of_folders: bool) -> None:
    sync = disk.sync

    def some(path: Path) -> None:
        if path.is_dir() != of_folders:
            sync(path)

    snapshots_module.sync = some  # type: ignore[attr-defined]


_SPOIL: dict[str, Callable[[], None]] = {
    "full": _without_full,
    "file": lambda: _without_sync(of_folders=False),
    "folder": lambda: _without_sync(of_folders=True),
}


def _say(**told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
