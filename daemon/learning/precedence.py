"""Precedence: what someone waits for goes before what nobody waits for.

Only one thread at a time has the interpreter, and one that plans signals would keep it from those that put others
on disk, whose senders wait. So planning stands aside meanwhile, though never for long.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST_SECONDS = 0.05
"""How long those who plan a batch stand aside in all: a few others' putting. A steady sender must not end all
planning."""


class Precedence:
    """Kept between the event loop, which goes first, and threads that stand aside."""

    def __init__(self) -> None:
        self._going = 0
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def going_first(self) -> Iterator[None]:
        """Others stand aside for as long as the block runs. On the event loop only."""
        self._going += 1
        self._free.clear()
        try:
            yield
        finally:
            self._going -= 1
            if not self._going:
                self._free.set()

    def standing_aside(self) -> Iterator[None]:
        """Each step returns when nobody goes first, or once all steps have waited `MOST_SECONDS`."""
        left = MOST_SECONDS
        while True:
            if not self._free.is_set():
                began = time.perf_counter()
                self._free.wait(max(0.0, left))
                left -= time.perf_counter() - began
            yield
