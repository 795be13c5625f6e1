"""The sides that take one optimizer step on the same 64 tokens: ours, and the three ways a user has today.

Letters: `P` tokens of the prefix, `R` rows of the run.

- All have float32 weights, LoRA of rank 8 on every linear layer, AdamW, and the same conversation: P tokens, then
  R rows that are fed tokens P … P + R − 1 and should predict the token after each.
- Serving the prefix is no part of a lesson where the prefix is kept: with ours and with the cached prefix.
- A lesson on a reply or on what was perceived has its run served by then, so that the KL from the served
  distribution, which none of the others reports, is a head away. That of a correction has not: it computes what
  would have been served by a forward pass more, and is a side of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from daemon.bench.floor import floor_seconds
from daemon.bench.measure import answer, load, measured, settings, text_tokens
from daemon.bench.phases import largest_tensors, phases
from daemon.bench.plan import GROWTH, LESSON, Plan
from engine.batch import Batch, lesson_rows, serving_rows
from engine.engine import Engine
from engine.walk import Walk

RANK, ALPHA, LEARNING_RATE = 8, 16, 1e-4
"""The engine's own defaults, given to the others."""


class Ridealong:
    """Our lesson: a walk over a served prefix, on a run that was served after it."""

    serves_run = True

    def __init__(self, plan: Plan) -> None:
        self._top, self._run_tokens = plan.top, plan.sizes.run_tokens
        loaded = load(plan)
        self._model = loaded.model
        self._name = loaded.name
        self._prefix = plan.sizes.prefix_tokens
        self._tokens = text_tokens(loaded, self._prefix + self._run_tokens + 1)
        self._engine = Engine(loaded.model, settings(plan, slots=1, context_tokens=len(self._tokens)))
        self._engine.add_shadow("shadow", seed=0)
        served = self._tokens[: -1 if self.serves_run else self._prefix]
        self._engine.step(Batch(serving_rows(0, 0, served)))
        self._loss = self._learn()

    def ready(self) -> Mapping[str, Any]:
        """The model's name, the first step's loss, and the packing in use."""
        return {"model": self._name, "loss": self._loss, "repack": self._engine.packing.mode}

    def do(self, what: str) -> Mapping[str, Any]:
        """A lesson; or the lesson's floor, its phases, its largest tensors."""
        match what:
            case "floor":
                return {"seconds": floor_seconds(self._model, prefix=self._prefix, rows=self._run_tokens)}
            case "phases":
                return {"phases": phases(self._start)}
            case "tensors":
                return {"tensors": largest_tensors(self._start, self._top)}
        with measured(what) as meter:
            self._learn()
        return answer(meter.sample)

    def _learn(self) -> float:
        """A lesson; returns its loss."""
        walk = self._start()
        while (learned := walk.advance()) is None:
            pass
        return learned.loss

    def _start(self) -> Walk:
        tokens, targets = self._tokens[self._prefix : -1], self._tokens[self._prefix + 1 :]
        rows = lesson_rows(0, self._prefix, tokens, targets, [1.0] * len(tokens))
        return self._engine.step(Batch(rows), shadows={0: "shadow"}).walks[0]


class RidealongUnserved(Ridealong):
    """Our lesson on a run that was not served, as a correction is."""

    serves_run = False


class _PeftStep:
    """What the two plain PEFT loops share: a model under LoRA, its optimizer, and a step on some rows' logits."""

    def __init__(self, plan: Plan) -> None:
        loaded = load(plan)
        self._name = loaded.name
        self._prefix, self._rows = plan.sizes.prefix_tokens, plan.sizes.run_tokens
        self._tokens = torch.tensor([text_tokens(loaded, self._prefix + self._rows + 1)])
        self._model: PeftModel = get_peft_model(loaded.model, lora())
        learned = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE, weight_decay=0.0)
        self._prepare()
        self._loss = self._step()

    def ready(self) -> Mapping[str, Any]:
        """The model's name and the first step's loss."""
        return {"model": self._name, "loss": self._loss}

    def do(self, what: str) -> Mapping[str, Any]:
        """A lesson."""
        with measured(what) as meter:
            self._step()
        return answer(meter.sample)

    def _step(self) -> float:
        """A step; returns its loss."""
        loss = F.cross_entropy(self._logits(), self._tokens[0, self._prefix + 1 :])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def _prepare(self) -> None:
        """What the loop does once, before its first step."""

    def _logits(self) -> Tensor:
        """Logits [R, V] of the run's rows."""
        raise NotImplementedError


class WholeWindow(_PeftStep):
    """A PEFT step over prefix and run, with the head on the labelled rows only."""

    def _logits(self) -> Tensor:
        output = self._model(input_ids=self._tokens[:, :-1], use_cache=False, logits_to_keep=self._rows)
        logits: Tensor = output.logits[0]
        return logits


class CachedPrefix(_PeftStep):
    """A PEFT step on the run alone, after a prefix whose keys and values are cached and detached."""

    def _prepare(self) -> None:
        self._cache = DynamicCache(config=self._model.config)
        with torch.no_grad(), self._model.disable_adapter():
            prefix = self._tokens[:, : self._prefix]
            self._model(input_ids=prefix, cache=self._cache, use_cache=True, logits_to_keep=1)
        self._layers = [layer for layer in self._cache.layers if isinstance(layer, DynamicLayer)]
        assert len(self._layers) == len(self._cache.layers), "a layer has more than keys and values"
        self._kept = [(layer.keys, layer.values) for layer in self._layers]

    def _logits(self) -> Tensor:
        run = self._tokens[:, self._prefix : -1]
        logits: Tensor = self._model(input_ids=run, cache=self._cache, use_cache=True).logits[0]
        for layer, (keys, values) in zip(self._layers, self._kept, strict=True):
            layer.keys, layer.values = keys, values  # the run's own rows are not part of the next step's prefix
        return logits


class Trl:
    """A step of trl's SFTTrainer, from the beginning of the step to its end, with trl's defaults.

    `max_length` alone is not the default, which would cut the reply off.
    """

    def __init__(self, plan: Plan) -> None:
        from daemon.bench.trl import make_trainer  # noqa: PLC0415 - an extra

        loaded = load(plan)
        self._name = loaded.name
        prefix = plan.sizes.prefix_tokens
        tokens = text_tokens(loaded, prefix + plan.sizes.run_tokens + 1)
        self._step = make_trainer(loaded, tokens, unlabelled=prefix + 1, adapter=lora())
        self._loss = self._step(trims=False).loss

    def ready(self) -> Mapping[str, Any]:
        """The model's name and the first step's loss."""
        return {"model": self._name, "loss": self._loss}

    def do(self, what: str) -> Mapping[str, Any]:
        """A lesson."""
        assert what in LESSON, what
        return answer(self._step(trims=what == GROWTH).sample)


def lora() -> LoraConfig:
    """The adapter of every side but ours, which has the same by default."""
    return LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
