"""A process that has torch and a model in memory, and forks a `ridealong forget` for each line it is told.

It speaks JSON: an `Attempt` in, a line each; the exit status out, below 0 for a signal.
"""

import json
import os
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import daemon.learning.workshop as workshop_module
from daemon.commands.cli import main as ridealong
from tests.daemon.crash import points as python_points
from tests.daemon.crash import sqlite as sqlite_points
from tests.daemon.crash.forks import status_of_fork, the_model
from tests.daemon.crash.points import Points


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is forgotten where, and at which point it is killed; `note` is that point's kind, else every kind."""

    data_dir: str
    flags: list[str]
    note: str
    kill_at: int | None = None


def main() -> None:
    """Fork until there are no more lines."""
    model = the_model()
    workshop_module.load_model = lambda *_given, **_options: model  # type: ignore[attr-defined]
    for line in sys.stdin:
        attempt = Attempt(**json.loads(line))
        sys.stdout.write(f"{status_of_fork(partial(_status_of, attempt))}\n")
        sys.stdout.flush()


def _status_of(attempt: Attempt) -> int:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    note = Path(attempt.note)
    points = Points(Path(attempt.data_dir), kill_at=attempt.kill_at, note=note, durable=None)
    python_points.install(points)
    sqlite_points.install(points)
    try:
        status = ridealong(["forget", "--yes", "--data-dir", attempt.data_dir, *attempt.flags])
    except Exception:  # the border of a forked process, which must not go on as its parent does
        traceback.print_exc()
        return 4
    note.write_text(json.dumps(points.reached()))
    return status


if __name__ == "__main__":
    main()
