"""The service as a process of its own."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon import running
from daemon.config import Settings


async def test_what_is_there_when_it_begins_to_serve_is_left_alone_by_the_collector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frozen = list[int]()

    @asynccontextmanager
    async def served(settings: Settings, stop: asyncio.Event, *_: object, **__: object) -> AsyncIterator[str]:
        stop.set()
        yield "http://127.0.0.1"
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(running, "running", served)
    try:
        await running._serve_until_signalled(Settings(data_dir=tmp_path))
        assert frozen[0] > 10_000
    finally:
        gc.unfreeze()
