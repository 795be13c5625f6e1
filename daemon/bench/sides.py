"""The sides a bench compares, each in a process of its own, asked in turn: while one works the others sleep.

- A process each: no side inherits another's memory, patched model or warmed-up caches, and what a side adds to
  its resident set is its own.
- A side is prepared, and has done its work once to warm up, before anything is measured.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from daemon.bench.plan import Plan, Say

OURS = "ridealong"
"""The name of our own side."""

QUIET = ("-W", "ignore::FutureWarning")
"""Libraries that warn of each other's deprecations say nothing about what is measured."""

END_SECONDS = 30.0
"""How long a side may take to end once nothing more can be asked of it."""


class SideFailed(Exception):
    """A side's process ended or could not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One piece of work: what it took, how far the process grew for it, and the tokens it gave."""

    seconds: float
    added_bytes: int = 0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens served per second of the work."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Medians:
    """The middle of a side's samples."""

    seconds: float
    added_bytes: float
    tokens_per_second: float


class Side:
    """The parent's end of a side. `ready` is what it said when it was prepared: its model's name and so on."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.ready: Mapping[str, Any] = {}
        self._process = process

    def ask(self, what: str) -> Mapping[str, Any]:
        """Have the side do something; returns what it says.

        Raises:
            SideFailed: it could not; its own words are on standard error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(what + "\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise SideFailed(f"the side {self.name!r} ended when asked to {what}; see what it says above")
        said: Mapping[str, Any] = json.loads(answer)
        return said

    def measure(self, what: str) -> Sample:
        """Have the side do a piece of work once."""
        return Sample(**self.ask(what))


@contextmanager
def started_sides(kinds: Mapping[str, str], plans: Mapping[str, Plan]) -> Iterator[dict[str, Side]]:
    """Sides by name: started together, prepared and warmed up one after the other, ended with the block.

    Args:
        kinds: by name, which side of `daemon.bench.child` it is.
        plans: by name, its plan.

    Raises:
        SideFailed: one could not be prepared.
    """
    with ExitStack() as stack:
        sides = {}
        for name, kind in kinds.items():
            command = [sys.executable, *QUIET, "-m", "daemon.bench.child", kind, plans[name].to_json()]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            sides[name] = Side(name, process)
        for side in sides.values():
            side.ready = side.ask("prepare")
        yield sides


def alternate(
    sides: Sequence[Side], work: Sequence[str], *, rounds: int, say: Say
) -> dict[tuple[str, str], Medians]:
    """Ask the sides in turn for each piece of work, round after round; medians by side's name and work."""
    samples: dict[tuple[str, str], list[Sample]] = {(side.name, what): [] for what in work for side in sides}
    for number in range(rounds):
        for what in work:
            for side in sides:
                sample = side.measure(what)
                samples[side.name, what].append(sample)
                say(f"round {number + 1} of {rounds}: {what}, {side.name}: {sample.seconds:.3f} s")
    return {key: _medians(taken) for key, taken in samples.items()}


def _medians(samples: Sequence[Sample]) -> Medians:
    return Medians(
        seconds=statistics.median(sample.seconds for sample in samples),
        added_bytes=statistics.median(sample.added_bytes for sample in samples),
        tokens_per_second=statistics.median(sample.tokens_per_second for sample in samples),
    )


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # a side ends when nothing more can be asked
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
