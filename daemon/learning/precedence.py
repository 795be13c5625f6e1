"""Precedence: what someone waits for goes before what nobody waits for.

Only one thread at a time has the interpreter, and one that plans signals would keep it from those that put others
on disk, whose senders wait. So planning stands aside meanwhile, though never for long, and not at all while
someone waits for what is planned.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PAUSE_SECONDS = 0.02
"""How long after one putting another is waited for: who sends a list when the last is answered takes that long."""

MOST_SECONDS = 1.0
"""How long those who plan a batch stand aside in all: a steady sender must not end all planning."""


class Precedence:
    """Kept between the event loop, which goes first and alone changes it, and threads that stand aside."""

    def __init__(self) -> None:
        self._going = 0
        self._waiting = 0
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def going_first(self) -> Iterator[None]:
        """Others stand aside for as long as the block runs, and a little longer."""
        self._count(going=1)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, lambda: self._count(going=-1))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Someone waits for what others do: they do not stand aside for as long as the block runs."""
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    def standing_aside(self) -> Iterator[None]:
        """Each step returns when nobody goes first, or once all steps have waited `MOST_SECONDS`."""
        left = MOST_SECONDS
        while True:
            if not self._free.is_set():
                began = time.perf_counter()
                self._free.wait(max(0.0, left))
                left -= time.perf_counter() - began
            yield

    def _count(self, *, going: int = 0, waiting: int = 0) -> None:
        self._going += going
        self._waiting += waiting
        if self._going and not self._waiting:
            self._free.clear()
        else:
            self._free.set()
