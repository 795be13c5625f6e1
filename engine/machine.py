"""What made a step: the machine's part in the bits that come of a product, and the lane's."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch

from engine.engine import Engine

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the same products give the same bits: torch's release, its instructions and threads, the processor."""

    torch: str
    capability: str
    threads: int
    processor: str

    @classmethod
    def here(cls) -> Self:
        """The machine that this runs on."""
        return cls(
            torch=torch.__version__,
            capability=str(torch.backends.cpu.get_cpu_capability()),
            threads=torch.get_num_threads(),
            processor=_processor(),
        )


@dataclass(frozen=True, slots=True)
class MadeBy:
    """A machine, and the lane on it: how its weights were packed, and the dimensions of its slots' storage."""

    machine: Machine
    repack: str
    slots: int
    context_tokens: int

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """The machine that this runs on, and the lane that has the engine."""
        settings = engine.settings
        return cls(Machine.here(), engine.packing.mode, settings.slots, settings.context_tokens)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Self:
        """What that JSON, which may say more, says of it."""
        own = {field.name: told[field.name] for field in fields(cls)}
        return cls(**(own | {"machine": Machine(**told["machine"])}))


def _processor() -> str:
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
