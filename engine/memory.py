"""How many bytes this process takes and how many are to be had, as the operating system and the device say."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")

MemoryRefusal = Literal["host_memory", "device_memory"]


@dataclass(frozen=True, slots=True)
class Room:
    """What a lesson may take in bytes, what sets the limit, and the refusal of a lesson that needs more."""

    nbytes: int
    limit: str
    refusal: MemoryRefusal = "host_memory"


def lesson_room(device: torch.device, *, most: int) -> Room:
    """What a lesson may take on the device that holds the model: `most` bytes, or what is free if that is less."""
    if device.type == "cpu":
        free, where = available_bytes(), "the host"
        refusal: MemoryRefusal = "host_memory"
    else:
        free, where = torch.cuda.mem_get_info(device)[0], f"the device {device}"
        refusal = "device_memory"
    return Room(min(most, free), "--lesson-mib" if most <= free else f"what is free on {where}", refusal)


def resident_bytes() -> int:
    """The resident set, in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


def available_bytes() -> int:
    """What can be allocated without pushing anything out of memory, in bytes."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
