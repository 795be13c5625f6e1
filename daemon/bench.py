"""`ridealong bench start`: seconds from launch to serving, first with weights to convert, then from the cache."""

import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from daemon.child import ChildFailed, serving_child

SECOND_STARTS = 3


def run_start() -> int:
    """Measure a first start and some second ones; prints a line each and one of JSON last."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            first = _start(Path(folder), "first start, weights to convert")
            seconds = [_start(Path(folder), "second start, weights kept") for _ in range(SECOND_STARTS)]
        except ChildFailed as error:
            sys.stderr.write(f"ridealong: {error}\n")
            return 1
    report = {
        "bench": "start",
        "machine": platform.machine(),
        "model": "bundled",
        "first_seconds": round(first, 2),
        "second_seconds": round(statistics.median(seconds), 2),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _start(data_dir: Path, what: str) -> float:
    with serving_child(data_dir, []) as child:
        sys.stdout.write(f"{what}: {child.start_seconds:.2f} s\n")
        sys.stdout.flush()
        return child.start_seconds
