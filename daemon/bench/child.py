"""A side's own process: reads what to do from standard input, a line each, and answers in lines of JSON.

- Whatever libraries print goes to standard error; standard output is the answers' alone.
- `prepare` makes the side and is asked first; what else a side can do is the side's business.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from daemon.bench.plan import Plan


class Worker(Protocol):
    """A side as its process sees it: made of a plan, warmed up, then asked for one piece of work at a time."""

    def ready(self) -> Mapping[str, Any]:
        """The model's name; the packing, if it is ours; the first step's loss, if it learns."""

    def do(self, what: str) -> Mapping[str, Any]:
        """Do it; returns what there is to say, as JSON can hold it."""


def main(kind: str, plan: Plan) -> None:
    """Serve a side until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        what = line.strip()
        if what == "prepare":
            worker = _maker(kind)(plan)
        assert worker is not None, f"{kind} was asked to {what} before it was prepared"
        answers.write(json.dumps(worker.ready() if what == "prepare" else worker.do(what)) + "\n")
        answers.flush()


def _maker(kind: str) -> Callable[[Plan], Worker]:
    from daemon.bench import lesson_sides, serve_sides  # noqa: PLC0415 - they load torch

    makers: dict[str, Callable[[Plan], Worker]] = {
        "lesson": lesson_sides.Ridealong,
        "unserved-lesson": lesson_sides.RidealongUnserved,
        "whole-window": lesson_sides.WholeWindow,
        "cached-prefix": lesson_sides.CachedPrefix,
        "trl": lesson_sides.Trl,
        "lane": serve_sides.ServingLane,
        "generate": serve_sides.Generate,
    }
    return makers[kind]


if __name__ == "__main__":
    main(sys.argv[1], Plan.from_json(sys.argv[2]))
