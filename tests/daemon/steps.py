"""The lane's steps, one at a time as a test lets them: so that a client can leave at exactly one of them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine.engine import Engine


class Steps:
    """Counts the steps that the lane begins; each waits until it is allowed."""

    def __init__(self) -> None:
        self.begun = 0
        self._allowed = threading.Semaphore(0)
        self._free = False

    def begin(self) -> None:
        """Called by the lane's thread."""
        self.begun += 1
        if not self._free:
            self._allowed.acquire()

    def allow(self, steps: int = 1) -> None:
        """Let so many more steps go on."""
        self._allowed.release(steps)

    def go_on(self) -> None:
        """From now on let everything go on."""
        self._free = True
        self._allowed.release()

    async def at(self, step: int) -> None:
        """Return once the lane stands at the beginning of that step, the first being 1."""
        async with asyncio.timeout(30):
            while self.begun < step:
                await asyncio.sleep(0.001)
        assert self.begun == step, f"the lane began {self.begun} steps"


@contextmanager
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Have the lane take its steps one by one for as long as the block runs."""
    steps, step = Steps(), Engine.step

    def waiting(self: Engine, *args: Any, **kwargs: Any) -> Any:
        steps.begin()
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "step", waiting)
        try:
            yield steps
        finally:
            steps.go_on()
