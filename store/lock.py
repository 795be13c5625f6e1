"""One writer a database: a lock file beside the SQLite file, held for as long as the writer lives.

* The kernel holds the lock, not the file: a process that is killed leaves the file and frees the lock.
* The file is never removed: removing it while another process waits on it would let two in.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from store.errors import AlreadyOpen


class WriterLock:
    """The right to write to one database file, held from `take` to `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, database: Path) -> Self:
        """Take the lock, or raise `AlreadyOpen` naming the process that has it."""
        path = database.with_name(database.name + ".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode() or "another one"
            os.close(descriptor)
            raise AlreadyOpen(
                f"the ledger at {database} is open for writing in process {holder}:"
                " stop that one first, or use another data directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return cls(descriptor)

    def release(self) -> None:
        """Let the next writer in; once is enough, again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
