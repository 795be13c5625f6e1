"""What a process holds: threads, open files, tasks, tensors, objects, memory; and how long a soak lasts."""

import asyncio
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.memory import resident_bytes
from engine.packed import PackedLinear

ASKED_SECONDS = os.environ.get("SOAK_SECONDS")
"""How long a soak with the bundled model is to last; without it, a tiny model is soaked for a moment."""

SOAK_SECONDS = float(ASKED_SECONDS or 2)

MOST_GROWTH_MIB = 64
"""What the resident set may grow by between a third of a soak and its end: the allocator's own unrest. One token's
keys and values of the bundled model, kept with every token, would come to a gibibyte within the ten minutes."""

MOST_NEW_OBJECTS = 1000
"""What the collector may have more to look at: caches fill. One for each turn of ten minutes would be more."""

MOST_ROWS = 96
"""Most passes of a soak have so many rows at most."""

_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What was held when it was taken."""

    threads: int
    handles: int
    tasks: int
    tensors: int
    objects: int
    resident_mib: int

    def grown_since(self, before: "Footprint") -> dict[str, tuple[int, int]]:
        """What there is more of than before, of all that can be counted to the last: before and now, by name."""
        names = ("threads", "handles", "tasks", "tensors")
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[1] > pair[0]}


def footprint() -> Footprint:
    """Take it now, after a collection. Threads are the operating system's, torch's own included."""
    gc.collect()
    objects = gc.get_objects()
    return Footprint(
        threads=len(list((_PROCESS / "task").iterdir())),
        handles=len(os.listdir(_PROCESS / "fd")),  # noqa: PTH208 - iterdir may hold a handle more of its own
        tasks=_tasks(),
        tensors=sum(issubclass(type(each), Tensor) for each in objects),
        objects=len(objects),
        resident_mib=resident_bytes() >> 20,
    )


def make_kernels(model: nn.Module) -> None:
    """Have oneDNN make the kernels that a soak needs: it makes one for every shape of a packed product, when it
    first comes, and keeps it.
    """
    packs = [module for module in model.modules() if isinstance(module, PackedLinear)]
    for pack in {(pack.in_features, pack.out_features): pack for pack in packs}.values():
        for rows in range(1, MOST_ROWS + 1):
            pack(torch.zeros(1, rows, pack.in_features, requires_grad=True)).sum().backward()


def tell(line: str) -> None:
    """Write a line where `pytest -s` shows it."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


def footprints_line(warm: Footprint, third: Footprint, end: Footprint) -> str:
    """The footprints after the warm-up and at the end, and the resident set on the way."""
    return (
        f"threads {warm.threads} → {end.threads}, handles {warm.handles} → {end.handles}, "
        f"tasks {warm.tasks} → {end.tasks}, tensors {warm.tensors} → {end.tensors}, "
        f"resident {third.resident_mib} MiB at a third → {end.resident_mib} MiB at the end"
    )


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no loop runs here
        return 0
