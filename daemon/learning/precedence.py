"""Precedence: what someone waits for goes before what nobody waits for.

Only one thread at a time has the interpreter, and one that plans signals would keep it from those that put others
on disk, whose senders wait. So planning stands aside meanwhile, though never for long.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_SECONDS = 0.05
"""How long one standing aside may take: a few batches' putting. A steady sender must not end all planning."""


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

    def stand_aside(self) -> None:
        """Return when nobody goes first, or after `MOST_SECONDS`."""
        self._free.wait(MOST_SECONDS)
