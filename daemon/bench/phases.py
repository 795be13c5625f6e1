"""Where a lesson's time and memory go: its phases, and the largest tensors that are born in it.

- A phase is told by the function of the engine that runs; a lesson is walked twice, once to measure its segments,
  once to learn which phase each belongs to, since looking costs time.
- A tensor is what an operation gives in memory of its own; views are not.
"""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daemon.bench.measure import peak_bytes, reset_peak, start_meter
from engine.walk import Walk

FORWARD = "forward"
PHASES = {"_served_states": "as served, for the KL", "_loss": "loss", "_backward": "backward", "step": "step"}
"""By function of the engine, the phases beside the forward under the shadow."""


@dataclass(slots=True)
class Phase:
    """A phase of a lesson: how long its segments ran, and how far the process had grown at most in them."""

    name: str
    segments: int = 0
    seconds: float = 0.0
    added_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Born:
    """A kind of tensor that is born in a lesson."""

    phase: str
    operation: str
    shape: str
    dtype: str
    nbytes: int


def phases(start: Callable[[], Walk]) -> list[dict[str, Any]]:
    """The phases of one lesson, in the order they begin."""
    measured, named = _measure_segments(start()), _trace(start()).phases
    assert len(measured) == len(named), f"two lessons alike have {len(measured)} and {len(named)} segments"
    found: dict[str, Phase] = {}
    for name, (seconds, added) in zip(named, measured, strict=True):
        phase = found.setdefault(name, Phase(name))
        phase.segments += 1
        phase.seconds += seconds
        phase.added_bytes = max(phase.added_bytes, added)
    return [asdict(phase) for phase in found.values()]


def largest_tensors(start: Callable[[], Walk], top: int) -> list[dict[str, Any]]:
    """The `top` largest kinds of tensor of one lesson, with how many of each are born."""
    born = _trace(start()).born
    largest = sorted(born, key=lambda kind: (-kind.nbytes, kind.phase, kind.operation))[:top]
    return [asdict(kind) | {"count": born[kind]} for kind in largest]


def _measure_segments(walk: Walk) -> list[tuple[float, int]]:
    """Seconds and growth over what was held before the lesson, segment by segment."""
    baseline = start_meter().baseline_bytes
    segments = []
    ended = False
    while not ended:
        reset_peak()
        started = time.perf_counter()
        ended = walk.advance() is not None
        segments.append((time.perf_counter() - started, max(0, peak_bytes() - baseline)))
    return segments


def _trace(walk: Walk) -> "_Trace":
    trace = _Trace()
    ended = False
    while not ended:
        with trace:
            ended = walk.advance() is not None
        trace.end_segment()
    return trace


class _Trace(TorchDispatchMode):
    """Sees every operation: in which phase it runs, and what tensors it gives birth to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phases: list[str] = []
        self.born: dict[Born, int] = {}
        self._phase = FORWARD

    def end_segment(self) -> None:
        """A segment is over; it belongs to the phase of its last operation."""
        self.phases.append(self._phase)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and look at it."""
        given = func(*args, **(kwargs or {}))
        self._phase = _phase_of(sys._getframe())
        taken = {_address(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(given):
            if _address(tensor) not in taken:
                kind = Born(
                    phase=self._phase,
                    operation=str(func),
                    shape=" × ".join(map(str, tensor.shape)) or "scalar",
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    nbytes=tensor.nbytes,
                )
                self.born[kind] = self.born.get(kind, 0) + 1
        return given


def _phase_of(frame: FrameType | None) -> str:
    """The phase that the outermost of the walk's functions on the stack stands for."""
    phase = FORWARD
    while frame is not None and frame.f_code is not Walk.advance.__code__:
        phase = PHASES.get(frame.f_code.co_name, phase)
        frame = frame.f_back
    return phase


def _tensors(value: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _address(tensor: Tensor) -> int:
    """Where the tensor's memory begins; opaque ones, packed by oneDNN, are told apart by identity."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
