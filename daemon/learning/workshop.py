"""Where lessons are learned again: an engine with no lane, made as the one was that a step was taken on.

- The next step's engine is the same where the same lane made it; else the model is loaded anew.
- A shadow goes on from the state it is told; where it stands there already nothing is copied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from daemon.config import Settings
from daemon.learning.snapshots import Snapshots
from daemon.text.chat_template import HuggingFaceChat
from engine.again import DoneLesson, learn_again
from engine.engine import Engine, EngineSettings
from engine.lora import AdapterShape
from engine.machine import Machine, MadeBy
from engine.packed import Repack
from engine.shadow import OptimizerSettings
from engine.walk import LessonLearned
from engine.weights import LoadedModel, load_model

SERVED = "served"
"""The engine's name of the stable set that the prefix in hand was served with, where that is not the base."""

_SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class State:
    """A shadow as it was: its hash, all that its next step depends on, and the last step that is in it."""

    sha: str
    tensors: dict[str, Tensor]
    step_number: int

    @property
    def snapshot(self) -> str:
        """The name of its snapshot, on disk or not."""
        return Snapshots.name_of(self.tensors)


class Workshop:
    """Takes steps again. `load` loads the model; `close` gives it back."""

    def __init__(self, load: Callable[[], LoadedModel], *, shape: AdapterShape, lesson_bytes: int) -> None:
        self._load = load
        self._shape = shape
        self._lesson_bytes = lesson_bytes
        self._engine: Engine | None = None
        self._made: tuple[MadeBy, OptimizerSettings] | None = None
        self._standing: State | None = None
        self._served: State | None = None
        self._here = Machine.here()

    def is_this_machine(self, machine: Machine) -> bool:
        """Do the same products give the same bits here? Threads do not count: they are set as they were."""
        return machine == Machine(self._here.torch, self._here.capability, machine.threads, self._here.processor)

    def learn(
        self,
        lesson: DoneLesson,
        before: State,
        *,
        served: State | None,
        made_by: MadeBy,
        optimizer: OptimizerSettings,
        number: int,
    ) -> tuple[LessonLearned, State]:
        """Take a step again on the state before it; returns what was learned, and the state after it.

        `served` is the stable set of the lesson's prefix, None where that is the base; `number` is the step's.

        Raises:
            NotAgain: it cannot be taken again here.
        """
        engine = self._engine_of(made_by, optimizer)
        shadow = engine.shadows[_SHADOW]
        if self._standing is not before:
            shadow.restore(before.tensors)
        if served is not None and self._served is not served:
            engine.bank.load(SERVED, served.tensors)
            self._served = served
        self._standing = None
        learned = learn_again(engine, lesson, shadow=_SHADOW)
        self._standing = State(learned.step.sha_after, shadow.snapshot(), number)
        return learned, self._standing

    def close(self) -> None:
        """Give the model back."""
        if self._engine is not None:
            self._engine.close()
            torch.set_num_threads(self._here.threads)
        self._engine, self._made, self._standing, self._served = None, None, None, None

    def _engine_of(self, made_by: MadeBy, optimizer: OptimizerSettings) -> Engine:
        if self._engine is not None and self._made == (made_by, optimizer):
            return self._engine
        self.close()
        torch.set_num_threads(made_by.machine.threads)
        self._engine = Engine(
            self._load().model,
            EngineSettings(
                slots=made_by.slots,
                context_tokens=made_by.context_tokens,
                repack=_repack(made_by.repack),
                adapters=self._shape,
                optimizer=optimizer,
                lesson_bytes=self._lesson_bytes,
            ),
        )
        self._engine.add_shadow(_SHADOW, seed=0)
        self._made = (made_by, optimizer)
        return self._engine


@dataclass(frozen=True, slots=True)
class Opened:
    """Where lessons are learned again, the snapshots of the data directory, and what planned the lessons."""

    workshop: Workshop
    snapshots: Snapshots
    chat: HuggingFaceChat


def open_workshop(settings: Settings, *, say: Callable[[str], None]) -> Opened:
    """Load the model of the settings, to which the snapshots are held.

    Raises:
        EngineError: it cannot be loaded.
    """

    def load() -> LoadedModel:
        return load_model(settings.model, cache=settings.models, say=say)

    first = load()
    loaded = [first]
    made_for = {"model": first.identity, "rank": str(settings.rank), "alpha": str(settings.alpha)}
    workshop = Workshop(
        lambda: loaded.pop() if loaded else load(),
        shape=AdapterShape(rank=settings.rank, alpha=settings.alpha),
        lesson_bytes=settings.lesson_mib * 2**20,
    )
    chat = HuggingFaceChat(first.tokenizer, first.end_tokens)
    return Opened(workshop, Snapshots(settings.data_dir, made_for=made_for), chat)


def optimizer_of(name: str, hyperparameters: Mapping[str, Any]) -> OptimizerSettings:
    """The optimizer that a step was taken by. Its rate is the step's own, and none of the optimizer's."""
    if name == "sgd":
        return OptimizerSettings(name="sgd")
    assert name == "adamw", f"there is no optimizer {name}"
    return OptimizerSettings(
        betas=(hyperparameters["betas"][0], hyperparameters["betas"][1]),
        eps=hyperparameters["eps"],
        weight_decay=hyperparameters["weight_decay"],
    )


def _repack(mode: str) -> Repack:
    modes: dict[str, Repack] = {"off": "off", "both": "both"}
    return modes[mode]
