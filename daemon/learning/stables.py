"""The stable sets that turns are served with: their names in the lane, and those that people see.

`base` is the frozen model, `ada@3` an agent's third version, `lora:0:mine@0.5` half of the adapter loaded as 0.
"""

import struct
from dataclasses import dataclass

from engine.slots import BASE

LORA_NAMES = "lora-"
"""How the lane's names of loaded adapters begin, and no others."""

_LORA_LABELS = "lora:"


@dataclass(frozen=True, slots=True)
class Stable:
    """A stable set: its name in the lane, and its label, the name that people see."""

    lane_name: str
    label: str


BASE_STABLE = Stable(BASE, BASE)


def lora_stable(number: int, path: str, scale: float) -> Stable:
    """A loaded adapter at a scale. Another scale is another set: no row served with one is reused by the other."""
    return Stable(_lora_name(number, scale), f"{_LORA_LABELS}{number}:{path}@{scale!r}")


def is_lora(label: str) -> bool:
    """Is this the label of a loaded adapter? An agent's has no colon."""
    return label.startswith(_LORA_LABELS)


def lora_lane_name(label: str) -> str:
    """The lane's name of a loaded adapter's set, held or not."""
    number, scale = label.split(":")[1], label.rpartition("@")[2]
    return _lora_name(int(number), float(scale))


def lora_names(number: int) -> str:
    """How the lane's names of a loaded adapter begin, whatever its scale."""
    return f"{LORA_NAMES}{number}-"


def _lora_name(number: int, scale: float) -> str:
    return lora_names(number) + struct.pack(">d", scale).hex()
