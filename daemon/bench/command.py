"""`ridealong bench`: a bench by its name, told as it goes, then as a table, then as one line of JSON.

- Nothing is compared across runs: both sides of every bar were measured in turn, in the run that reports it.
- With `--check` the exit status is 1 when a bar is not met.
"""

import argparse
import sys

from daemon.bench.interference import run_interference
from daemon.bench.learn import run_learn, run_memory
from daemon.bench.ledger import run_ledger
from daemon.bench.plan import ROUNDS, TINY, TINY_ROUNDS, TOP, Plan, Sizes
from daemon.bench.serve import run_serve
from daemon.bench.sides import SideFailed
from daemon.bench.signals import run_signals
from daemon.bench.start import run_start
from daemon.commands.child import ChildFailed
from daemon.commands.terminal import fail
from daemon.config import ConfigError
from engine.errors import EngineError

BENCHES = {
    "learn": run_learn,
    "serve": run_serve,
    "interference": run_interference,
    "memory": run_memory,
    "start": run_start,
    "ledger": run_ledger,
    "signals": run_signals,
}


def run(given: argparse.Namespace) -> int:
    """Run the bench that is asked for; returns the exit status.

    Raises:
        ConfigError: `--top` with a bench that lists no tensors.
    """
    if given.top is not None and given.what != "memory":
        raise ConfigError(f"--top lists a lesson's largest tensors, which bench {given.what} doesn't; drop it")
    plan = Plan(
        model=given.model,
        rounds=given.rounds or (TINY_ROUNDS if given.tiny else ROUNDS),
        repack=given.repack,
        top=given.top or TOP,
        sizes=TINY if given.tiny else Sizes(),
    )
    try:
        report = BENCHES[given.what](plan, _say)
    except (SideFailed, ChildFailed, EngineError) as error:
        return fail(str(error))
    _say(f"\n{report.table()}\n")
    if given.check and report.failed:
        sys.stderr.write(f"ridealong: not met: {'; '.join(report.failed)}\n")
    _say(report.line())
    return 1 if given.check and report.failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
