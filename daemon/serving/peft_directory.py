"""An adapter read from a PEFT directory: where it may lie, and what kinds of adapter a lane can serve.

Nothing outside the root is read, whatever the path or a link in it says.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from daemon.http.errors import BadRequest

_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
}
"""What these fields of adapter_config.json may be, where they are there."""


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter's tensors in float32 under PEFT's names, and the factor its term is scaled by."""

    scaling: float
    tensors: Mapping[str, Tensor]


def read_adapter(root: Path, path: str) -> PeftAdapter:
    """Read the adapter in the directory `path` of `root`.

    Raises:
        BadRequest: it is not there, is not inside the root, or is not a LoRA that a lane can serve.
    """
    try:
        config = json.loads(_file(root, f"{path}/adapter_config.json").read_text())
        tensors = load_file(_file(root, f"{path}/adapter_model.safetensors"))
        scaling = _scaling(config)
    except (OSError, SafetensorError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise _refused(f"{path!r} is no PEFT adapter in a directory of the exports: {error!r}") from error
    for key, allowed in _PLAIN.items():
        if config.get(key, allowed[0]) not in allowed:
            raise _refused(f"{path!r} has {key} {config[key]!r}; this lane serves plain LoRA, with {allowed[0]!r}")
    return PeftAdapter(scaling, {name: value.float() for name, value in tensors.items()})


def check_fits(path: str, adapter: PeftAdapter, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse an adapter whose tensors are not exactly those of the lane's own adapters.

    Raises:
        BadRequest: the first tensor that is missing, unknown, of another shape or not finite is named.
    """
    given = {name: tuple(value.shape) for name, value in adapter.tensors.items()}
    for name in sorted(given.keys() | expected.keys()):
        if given.get(name) != expected.get(name):
            has, wants = (f"of shape {said[name]}" if name in said else "not at all" for said in (given, expected))
            raise _refused(
                f"{path!r} has {name} {has}, this lane's adapters have it {wants}; "
                "load one of the lane's rank on the lane's layers"
            )
        if not bool(adapter.tensors[name].isfinite().all()):
            raise _refused(f"{path!r} has values in {name} that are not finite; export it again")


def _file(root: Path, path: str) -> Path:
    found = (root / path).resolve(strict=True)
    if not found.is_relative_to(root.resolve()):
        raise _refused(f"{path!r} leads out of {root}; only what is inside is loaded")
    return found


def _scaling(config: Mapping[str, Any]) -> float:
    """The factor of the term: alpha / r, or alpha / √r (Kalajdzievski 2023, arXiv:2312.03732)."""
    rank = int(config["r"])
    scaling = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    if not math.isfinite(scaling):
        raise ValueError(f"lora_alpha / r is {scaling}")
    return scaling


def _refused(message: str) -> BadRequest:
    return BadRequest(f"path: {message}", param="path")
