"""What a bench found: bars with both sides' figures, the machine it ran on, a small table and one line of JSON.

- `ratio` is always ours over theirs; a bar says how much it may be at most, or must be at least. A figure without
  a bar is reported only and cannot fail.
- What could not be measured is named as skipped, never left out in silence.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Bar:
    """One measure: our figure, theirs, and how their ratio is bounded."""

    name: str
    ours: float
    theirs: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs

    @property
    def holds(self) -> bool | None:
        """Is the bar met? None where there is none."""
        if self.at_most is not None:
            return self.ratio <= self.at_most
        return self.ratio >= self.at_least if self.at_least is not None else None

    @property
    def bound(self) -> dict[str, float] | None:
        """The bar itself: `at_most` or `at_least`, and the ratio's bound."""
        if self.at_most is not None:
            return {"at_most": self.at_most}
        return {"at_least": self.at_least} if self.at_least is not None else None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a bench runs. `load` is the machine's one-minute load average before the bench began."""

    machine: str
    cores: int
    torch: str
    load: float


@dataclass(frozen=True, slots=True)
class Report:
    """A bench's outcome. `repack` is the packing our side picked."""

    bench: str
    machine: Machine
    model: str
    repack: str
    rounds: int
    bars: tuple[Bar, ...]
    skipped: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the bars that are not met."""
        return tuple(bar.name for bar in self.bars if bar.holds is False)

    def line(self) -> str:
        """The report as one line of JSON."""
        facts: dict[str, Any] = {
            "bench": self.bench,
            "machine": self.machine.machine,
            "cores": self.machine.cores,
            "torch": self.machine.torch,
            "model": self.model,
            "load": self.machine.load,
            "repack": self.repack,
            "rounds": self.rounds,
            "skipped": list(self.skipped),
        }
        return json.dumps(facts | {"bars": [_record(bar) for bar in self.bars]}, allow_nan=False)

    def table(self) -> str:
        """The bars as a table, and what was skipped."""
        head = ("measure", "ours", "theirs", "", "ratio", "bar", "holds")
        rows = [head, *(_cells(bar) for bar in self.bars)]
        return "\n".join([align(rows), *(f"skipped: {name}" for name in self.skipped)])


def this_machine() -> Machine:
    """The machine and its load now: to be called before a bench puts any load on it."""
    cpu = Path("/proc/cpuinfo")
    named = cpu.read_text().partition("model name\t: ")[2].partition("\n")[0] if cpu.exists() else ""
    return Machine(
        machine=f"{platform.machine()} {named}".strip(),
        cores=len(os.sched_getaffinity(0)),
        torch=version("torch"),
        load=round(os.getloadavg()[0], 2),
    )


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}" for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def _record(bar: Bar) -> dict[str, Any]:
    return {
        "name": bar.name,
        "ours": bar.ours,
        "theirs": bar.theirs,
        "unit": bar.unit,
        "ratio": bar.ratio,
        "bar": bar.bound,
        "holds": bar.holds,
    }


def _cells(bar: Bar) -> tuple[str, ...]:
    bound = f"≤ {bar.at_most:.3g}" if bar.at_most else f"≥ {bar.at_least:.3g}" if bar.at_least else ""
    holds = {True: "yes", False: "NO", None: ""}[bar.holds]
    return (bar.name, f"{bar.ours:.4g}", f"{bar.theirs:.4g}", bar.unit, f"{bar.ratio:.3g}", bound, holds)
