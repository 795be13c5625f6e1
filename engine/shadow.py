"""A shadow: the adapter being trained, its optimizer, and the only place where it changes.

- A step changes everything or nothing: parameters, moments and counter are put back to the byte when a
  gradient is not finite, when the result is not finite, or when the optimizer raises.
- A step after which the shadow did not move is an error, not a success.
- A snapshot holds all that the next step depends on; restoring it is exact.
- Its hash is made once for each change of its values.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from engine.errors import EngineError, LessonRefused
from engine.lora import AdapterBank

_MOMENT = "optimizer."
_MOMENT_NAMES = ("exp_avg", "exp_avg_sq", "step")


class ShadowDidNotMove(EngineError):
    """A step was taken and the shadow's bytes are what they were."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How a shadow steps. Plain SGD makes the gradient visible: the step is −lr × gradient."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def hyperparameters(self) -> dict[str, Any]:
        """What a ledger needs to take the same step again."""
        if self.name == "sgd":
            return {"lr": self.lr}
        return {
            "lr": self.lr,
            "betas": list(self.betas),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One optimizer step: the gradient's norm, the shadow's hash before and after, and the learning rate."""

    gradient_norm: float
    sha_before: str
    sha_after: str
    lr: float


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What was before a step: the gradient's norm, the shadow's hash, and what a failed step is put back to."""

    gradient_norm: float
    sha_before: str
    snapshot: dict[str, Tensor]


class Shadow:
    """An adapter of the bank with the optimizer that trains it."""

    def __init__(self, bank: AdapterBank, name: str, settings: OptimizerSettings) -> None:
        self.name = name
        self.settings = settings
        self.steps = 0
        self._bank = bank
        self._parameters = bank.parameters(name)
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)
        self._optimizer = _make_optimizer(list(self._parameters.values()), settings)
        self._hashed: tuple[list[int], str] | None = None

    def sha256(self) -> str:
        """The SHA-256 of the adapter's values."""
        versions = [parameter._version for parameter in self._parameters.values()]
        if self._hashed is None or self._hashed[0] != versions:
            self._hashed = (versions, self._bank.sha256(self.name))
        return self._hashed[1]

    def gradient_norm(self) -> float:
        """The Euclidean norm of the gradient over all parameters."""
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def drop_gradient(self) -> None:
        """Forget the gradient."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def prepare(self) -> PreparedStep:
        """Make ready for a step along the gradient that the walk left. Nothing has changed yet.

        Raises:
            LessonRefused: `nonfinite_gradient`.
        """
        norm = self.gradient_norm()
        if not math.isfinite(norm):
            self.drop_gradient()
            raise LessonRefused(
                "nonfinite_gradient",
                f"the gradient's norm is {norm}; a step is taken on finite gradients only. "
                "The shadow is unchanged: lower the weights or the learning rate, or use a wider precision",
            )
        return PreparedStep(norm, self.sha256(), self.snapshot())

    def step(self, prepared: PreparedStep, *, lr: float | None = None) -> StepTaken:
        """Take the step that was prepared, then forget the gradient. `lr` is for this step alone.

        Raises:
            LessonRefused: `nonfinite_gradient`, of the result; nothing has changed.
            ShadowDidNotMove: the step had no effect; nothing has changed.
        """
        try:
            self._hashed = None  # a fused step does not count as a version
            rate = self.settings.lr if lr is None else lr
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
            sha_after = self._check_step(prepared.sha_before, rate)
        except BaseException:
            self.restore(prepared.snapshot)
            raise
        finally:
            self.drop_gradient()
        self.steps += 1
        return StepTaken(prepared.gradient_norm, prepared.sha_before, sha_after, rate)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of everything the next step depends on: parameters under PEFT's names, moments, counter."""
        copied = self._bank.tensors(self.name)
        for key, parameter in self._parameters.items():
            for moment, value in self._optimizer.state.get(parameter, {}).items():
                copied[f"{_MOMENT}{moment}.{key}"] = value.detach().clone()
        copied[f"{_MOMENT}steps"] = torch.tensor(self.steps)
        return copied

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Become what the snapshot holds, to the byte."""
        self._bank.load(self.name, snapshot)
        self._optimizer.state.clear()
        for key, parameter in self._parameters.items():
            moments = {
                moment: snapshot[f"{_MOMENT}{moment}.{key}"].clone()
                for moment in _MOMENT_NAMES
                if f"{_MOMENT}{moment}.{key}" in snapshot
            }
            if moments:
                self._optimizer.state[parameter] = moments
        self.steps = int(snapshot[f"{_MOMENT}steps"])

    def _check_step(self, sha_before: str, lr: float) -> str:
        norm = torch.nn.utils.get_total_norm([value.detach() for value in self._parameters.values()])
        if not bool(torch.isfinite(norm)):
            raise LessonRefused(
                "nonfinite_gradient",
                "the step would have left values that are not finite in the shadow; it was taken back. "
                f"The learning rate is {lr}: lower it",
            )
        sha_after = self.sha256()
        if sha_after == sha_before:
            raise ShadowDidNotMove(
                f"a step of {self.settings.name} at lr {lr} left the shadow {self.name} as it was"
            )
        return sha_after


def _make_optimizer(parameters: list[Any], settings: OptimizerSettings) -> torch.optim.Optimizer:
    if settings.name == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr)
    return torch.optim.AdamW(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
