"""`ridealong bench start`: seconds from launch to serving, with weights to convert, and with weights kept."""

import statistics
import tempfile
from pathlib import Path

from daemon.bench.plan import Plan, Say
from daemon.bench.report import Bar, Report, this_machine
from daemon.commands.child import serving_child


def run_start(plan: Plan, say: Say) -> Report:
    """First and second starts in turn, each pair in a data directory of its own. There is no peer.

    Raises:
        ChildFailed: the service did not come to serve.
    """
    machine = this_machine()
    first, second = list[float](), list[float]()
    for number in range(plan.rounds):
        with tempfile.TemporaryDirectory() as folder:
            first.append(_start(Path(folder), plan))
            second.append(_start(Path(folder), plan))
        say(f"round {number + 1} of {plan.rounds}: first {first[-1]:.2f} s, second {second[-1]:.2f} s")
    bar = Bar("launch to serving, second over first", statistics.median(second), statistics.median(first), "s")
    return Report("start", machine, plan.model or "bundled", plan.repack or "default", plan.rounds, bars=(bar,))


def _start(data_dir: Path, plan: Plan) -> float:
    flags = ["--model", plan.model] if plan.model else []
    flags += ["--repack", plan.repack] if plan.repack else []
    with serving_child(data_dir, flags) as child:
        return child.start_seconds
