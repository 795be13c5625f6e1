"""Adapters: PEFT's LoRA layer, applied to chosen rows only, and the bank that holds every adapter of a lane.

Letters: `N` rows of a pass (sequences × rows, flattened), `r` rank.

- Rows are chosen by index: gathered, given the adapter's term, put into a copy. A row not chosen keeps the
  base's bits. A pass that chooses no rows is the base graph itself.
- Names, configuration and files are PEFT's: `export` writes a directory that `peft.PeftModel` loads.
- An adapter's first values depend on its seed alone, so that it can be made again from a ledger.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.errors import LessonRefused

_PLACEHOLDER = "placeholder"
_PEFT_PREFIX = "base_model.model."

_OUT_PROJ_LEFT_OUT = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Families where PEFT refuses an adapter on `out_proj`: their fused kernel reads its weight past the adapter."""


@dataclass(frozen=True, slots=True)
class Use:
    """An adapter and the rows it applies to: indices into the pass's N rows, or every row."""

    adapter: str
    rows: Tensor | None = None


class RowPlan:
    """Which adapter applies to which rows of the pass in hand; one for each model."""

    def __init__(self) -> None:
        self.uses: tuple[Use, ...] = ()

    @contextmanager
    def using(self, *uses: Use) -> Iterator[None]:
        """Apply `uses` to the layers run inside; outside, no adapter applies."""
        self.uses = uses
        try:
            yield
        finally:
            self.uses = ()


class RideLinear(LoraLinear):  # type: ignore[misc]
    """PEFT's LoRA layer, which adds an adapter's term to the rows the plan names and to no other."""

    plan: RowPlan

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The base layer's output for x [..., in], with each use's term added on its rows."""
        result: Tensor = self.base_layer(x, *args, **kwargs)
        for use in self.plan.uses:
            result = self._with_term(use, x, result)
        return result

    def _with_term(self, use: Use, x: Tensor, result: Tensor) -> Tensor:
        rows, flat = x.flatten(0, -2), result.flatten(0, -2)
        if use.rows is None:
            return self._added(use.adapter, rows, flat).view_as(result)
        chosen = self._added(use.adapter, rows[use.rows], flat[use.rows])
        return flat.index_copy(0, use.rows, chosen).view_as(result)

    def _added(self, adapter: str, x: Tensor, result: Tensor) -> Tensor:
        down, up = self.lora_A[adapter].weight, self.lora_B[adapter].weight
        added: Tensor = _LowRankTerm.apply(result, x, down, up, self.scaling[adapter])  # type: ignore[no-untyped-call]
        return added


class _LowRankTerm(torch.autograd.Function):
    """result + scale · x Aᵀ Bᵀ for x [N, in], A [r, in], B [out, r]: LoRA's term, its scale on the [N, r] side.

    The same products as autograd's own, without the steps at full width that a scale, a sum and a
    transposed gradient of B would be.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, x: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        low = (x @ down.t()).mul_(scale)
        ctx.scale = scale
        ctx.save_for_backward(x, low, down, up)
        return torch.addmm(result, low, up.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, down, up = ctx.saved_tensors
        to_low = (gradient @ up).mul_(ctx.scale)
        to_x = to_low @ down if ctx.needs_input_grad[1] else None
        to_down, to_up = to_low.t() @ x, (low.t() @ gradient).t().contiguous()
        return gradient, to_x, to_down, to_up, None


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What every adapter of a lane shares: rank, scale and the projections it sits on ("all-linear" for all)."""

    rank: int = 8
    alpha: int = 16
    targets: str | tuple[str, ...] = "all-linear"


class AdapterBank:
    """Every adapter of one model, by name: made, copied, hashed, exported, dropped."""

    def __init__(self, model: PreTrainedModel, shape: AdapterShape) -> None:
        self.plan = RowPlan()
        self.shape = shape
        self._model = model
        self._base_name = str(model.config._name_or_path)
        targets = shape.targets if isinstance(shape.targets, str) else list(shape.targets)
        self._config = LoraConfig(
            r=shape.rank,
            lora_alpha=shape.alpha,
            target_modules=targets,
            exclude_modules=_left_out(model) if targets == "all-linear" else None,
            task_type="CAUSAL_LM",
        )
        self._config._register_custom_module({nn.Linear: RideLinear})
        inject_adapter_in_model(self._config, model, adapter_name=_PLACEHOLDER)
        self.layers: dict[str, RideLinear] = {
            name: module for name, module in model.named_modules() if isinstance(module, RideLinear)
        }
        for layer in self.layers.values():
            layer.plan = self.plan
        self._names: set[str] = {_PLACEHOLDER}
        self.drop(_PLACEHOLDER)
        model.requires_grad_(False)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def names(self) -> frozenset[str]:
        """The adapters held now."""
        return frozenset(self._names)

    def create(self, name: str, *, seed: int) -> None:
        """A new adapter whose term is zero: A uniform from `seed` (as nn.Linear's default), B zero."""
        assert name not in self._names, f"adapter {name} exists"
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers.values():
            self._add(layer, name)
            nn.init.kaiming_uniform_(layer.lora_A[name].weight, a=math.sqrt(5), generator=generator)
            nn.init.zeros_(layer.lora_B[name].weight)
        self._names.add(name)

    def load(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A new adapter, or the values of one that exists, from tensors under PEFT's names."""
        if name not in self._names:
            for layer in self.layers.values():
                self._add(layer, name)
            self._names.add(name)
        with torch.no_grad():
            for key, parameter in self.parameters(name).items():
                parameter.copy_(tensors[key])

    def drop(self, name: str) -> None:
        """Forget an adapter."""
        self._require(name)
        for layer in self.layers.values():
            for parts in (layer.lora_A, layer.lora_B, layer.lora_dropout):
                del parts[name]
            for facts in (layer.r, layer.lora_alpha, layer.scaling, layer.use_rslora, layer.use_dora):
                facts.pop(name, None)
            layer.lora_bias.pop(name, None)
        self._names.discard(name)

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """The adapter's parameters under PEFT's names, in the order of the model's layers."""
        self._require(name)
        return {
            f"{_PEFT_PREFIX}{path}.{part}.weight": getattr(layer, part)[name].weight
            for path, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }

    def tensors(self, name: str) -> dict[str, Tensor]:
        """A copy of the adapter's values under PEFT's names."""
        return {key: value.detach().clone() for key, value in self.parameters(name).items()}

    def sha256(self, name: str) -> str:
        """The SHA-256 of the adapter's values."""
        return tensors_sha256(self.parameters(name))

    def export(self, name: str, directory: Path) -> None:
        """Write a PEFT adapter directory: adapter_config.json and adapter_model.safetensors."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(name), directory / "adapter_model.safetensors", metadata={"format": "pt"})
        config = self._config.to_dict()
        config["target_modules"] = sorted({path.rpartition(".")[2] for path in self.layers})
        config |= {"inference_mode": True, "base_model_name_or_path": self._base_name}
        text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
        (directory / "adapter_config.json").write_text(text + "\n")

    def close(self) -> None:
        """Take every adapter and every layer of ours out of the model again."""
        for path, layer in self.layers.items():
            self._model.set_submodule(path, layer.base_layer)
        del self._model.peft_config
        self.layers, self._names = {}, set()

    def _add(self, layer: RideLinear, name: str) -> None:
        """Add an adapter to a layer, frozen. PEFT freezes and thaws the others as it adds: they are put back."""
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        layer.update_layer(name, self.shape.rank, lora_alpha=self.shape.alpha, config=self._config)
        layer.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)

    def _require(self, name: str) -> None:
        if name not in self._names:
            raise LessonRefused(
                "adapter_unknown",
                f"there is no adapter {name!r} on this lane; it holds {sorted(self._names)}",
            )


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of named tensors: names, shapes, precisions and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _left_out(model: PreTrainedModel) -> list[str] | None:
    return ["out_proj"] if model.config.model_type in _OUT_PROJ_LEFT_OUT else None


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set) else str(value)
