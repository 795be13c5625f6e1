"""What a piece of work takes: seconds, and how far the process grew beyond what it held before.

- Growth is the kernel's own high-water mark of the resident set, reset before the work: no peak is too short for
  it, and nothing runs beside the work to sample it.
- For growth, memory that the allocator keeps for later is given back before the work: work that reuses it counts.
  Time is taken without that, as work follows work in a service.
- Model weights and text are here too, so that every side has the same.
"""

import argparse
import ctypes
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daemon.bench.plan import GROWTH, LESSON, Plan
from daemon.bench.sides import Sample
from daemon.config import default_data_dir
from engine.engine import EngineSettings
from engine.weights import LoadedModel, load_model

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CLEAR_REFS, _RESET_PEAK = Path("/proc/self/clear_refs"), "5"
_STATUS = Path("/proc/self/status")
_LIBC = ctypes.CDLL(None)


@dataclass(slots=True)
class Meter:
    """Runs from its making to `stop`."""

    baseline_bytes: int
    started: float
    sample: Sample | None = None

    def stop(self) -> Sample:
        """What it was, from the making until now. At least one page: growth below it cannot be seen."""
        seconds = time.perf_counter() - self.started
        added = max(PAGE_BYTES, peak_bytes() - self.baseline_bytes)
        self.sample = Sample(seconds=seconds, added_bytes=added)
        return self.sample


def start_meter(*, trims: bool = False) -> Meter:
    """Measure from here on; with `trims`, from a process that keeps no free memory."""
    gc.collect()
    if trims and hasattr(_LIBC, "malloc_trim"):  # glibc's; other allocators keep less
        _LIBC.malloc_trim(0)
    reset_peak()
    return Meter(peak_bytes(), time.perf_counter())


def reset_peak() -> None:
    """Let the high-water mark start at what is resident now."""
    _CLEAR_REFS.write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """The most bytes that were resident since the mark was reset."""
    status = _STATUS.read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@contextmanager
def measured(what: str) -> Iterator[Meter]:
    """Measure the block, a lesson's time or its growth; the sample is the meter's when it ends."""
    assert what in LESSON, what
    meter = start_meter(trims=what == GROWTH)
    yield meter
    meter.stop()


def answer(sample: Sample | None) -> dict[str, Any]:
    """A sample as JSON can hold it."""
    assert sample is not None, "nothing was measured"
    return asdict(sample)


def load(plan: Plan) -> LoadedModel:
    """The plan's model; the bundled one's converted weights are the service's own."""
    return load_model(plan.model, cache=default_data_dir() / "models")


def settings(plan: Plan, *, slots: int, context_tokens: int) -> EngineSettings:
    """The engine's defaults, with dimensions that fit and the packing asked for."""
    if plan.repack is None:
        return EngineSettings(slots=slots, context_tokens=context_tokens)
    return EngineSettings(slots=slots, context_tokens=context_tokens, repack=plan.repack)


def text_tokens(loaded: LoadedModel, count: int, *, skip: int = 0) -> list[int]:
    """Token ids of a text that every machine with this Python has, from the `skip`-th on."""
    text = Path(argparse.__file__).read_text()
    tokens: list[int] = loaded.tokenizer.encode(text, add_special_tokens=False)
    assert len(tokens) >= skip + count, f"the text has {len(tokens)} tokens, {skip + count} were asked for"
    return tokens[skip : skip + count]
