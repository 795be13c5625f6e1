"""Forgetting while a service runs is prepared in a process of its own, which takes no time from whoever is served.

- It has the lowest priority: it computes while the lane does not.
- It only reads the ledger, and writes snapshots that nothing names yet.
- It has threads of its own, as many as the steps were taken with: the lane's stay as they are.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Sequence

from daemon.config import Settings
from daemon.http.errors import SnapshotDamaged
from daemon.learning.forget import Forgetting
from daemon.learning.workshop import open_workshop
from engine.errors import EngineError
from store.database import Database
from store.errors import CannotForget, StoreError
from store.forget import Change
from store.scopes import Found

LEAST_PRIORITY = 19


async def prepare(settings: Settings, found: Sequence[Found]) -> list[Change]:
    """What there is to change, as `Forgetting.prepare` finds it. Cancelled, it ends the process.

    Raises:
        CannotForget: what was learned since cannot be learned again here, or the process was ended.
    """
    command = [sys.executable, "-m", "daemon.learning.forget_child"]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        told, _ = await child.communicate(pickle.dumps((settings, list(found))))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        raise CannotForget(f"what is to be forgotten could not be prepared: status {child.returncode}; ask again")
    changes: list[Change] | str = pickle.loads(told)
    if isinstance(changes, str):
        raise CannotForget(changes)
    return changes


def main() -> None:
    """Prepare what standard input says, and tell it on standard output, where nothing else is written."""
    os.nice(LEAST_PRIORITY)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings, found = pickle.loads(sys.stdin.buffer.read())
    with os.fdopen(out, "wb") as told:
        told.write(pickle.dumps(_prepare(settings, found)))


def _prepare(settings: Settings, found: Sequence[Found]) -> list[Change] | str:
    try:
        database = Database.open(settings.ledger, read_only=True)
        try:
            opened = lambda: open_workshop(settings, say=_note)  # noqa: E731
            return Forgetting(database, opened, settings=settings, told=_note).prepare(found)
        finally:
            database.close()
    except (StoreError, EngineError, SnapshotDamaged, OSError) as error:
        return str(error)


def _note(line: str) -> None:
    sys.stderr.write(f"ridealong: {line}\n")


if __name__ == "__main__":
    main()
