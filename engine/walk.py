"""The walk: the exact backward pass of one lesson, a layer at a time, in segments the engine may serve between.

Letters: `R` rows of the run, `H` hidden size.

- The objective is the run, given everything before it as served: the prefix is a constant read from the
  slot's cache, and nothing is written to it.
- Forward under the shadow, keeping each layer's input [R, H]; head and loss in slices; backward layer by
  layer, each layer's graph rebuilt from its kept input; then one optimizer step.
- A segment is one layer, one slice or the step. Between two segments the engine may do anything but change
  the slot's prefix rows.
- However a walk ends other than by its step, the shadow is what it was, to the byte.
"""

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.cache import KeyValueStore, LessonView
from engine.errors import LessonRefused
from engine.lora import RowPlan, Use
from engine.loss import LabelledRows, SliceLoss, loss_slices
from engine.memory import resident_bytes
from engine.model import LayeredModel, Program
from engine.recurrent import LessonStates
from engine.shadow import Shadow, StepTaken


@dataclass(frozen=True, slots=True)
class Lesson:
    """One run to learn: tokens[i] is fed at position start + i of the slot and should predict targets[i]."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    rows: LabelledRows
    served_uses: tuple[Use, ...] = ()
    served_states: Tensor | None = None
    prefix_states: LessonStates | None = None


@dataclass(frozen=True, slots=True)
class LessonLearned:
    """A lesson's step, and what it was worth. Losses are before the step, in nats; KL(served ‖ shadow) too."""

    loss: float
    row_losses: tuple[float | None, ...]
    kl_served: float
    step: StepTaken
    steps: int
    learning_seconds: float
    segments: int
    longest_segment_seconds: float
    peak_bytes: int


@dataclass(slots=True)
class _Tally:
    """What is summed while the walk goes on."""

    loss: float = 0.0
    kl_sum: float = 0.0
    row_losses: dict[int, float] = field(default_factory=dict)

    def add(self, part: SliceLoss) -> None:
        self.loss += part.loss
        self.kl_sum += part.kl_sum
        self.row_losses |= part.row_losses


Segments = Generator[None, None, tuple[_Tally, StepTaken]]


class Walk:
    """One lesson on its way. `advance` runs a segment; `cancel` ends it and leaves nothing behind.

    Raises:
        LessonRefused: from `advance`: `nonfinite_loss` or `nonfinite_gradient`; the shadow is as it was.
    """

    def __init__(
        self, model: LayeredModel, plan: RowPlan, store: KeyValueStore, shadow: Shadow, lesson: Lesson
    ) -> None:
        self.lesson = lesson
        self.shadow = shadow
        self._model = model
        self._plan = plan
        self._store = store
        self._segments = self._run()
        self._seconds: list[float] = []
        self._resident_before = resident_bytes()
        self._peak_bytes = 0
        self.ended = False

    def advance(self) -> LessonLearned | None:
        """Run the next segment; the last one returns what was learned."""
        assert not self.ended, "the walk has ended"
        started = time.perf_counter()
        try:
            next(self._segments)
        except StopIteration as stop:
            self.ended = True
            self._seconds.append(time.perf_counter() - started)
            return self._learned(*stop.value)
        except BaseException:
            self.cancel()
            raise
        self._seconds.append(time.perf_counter() - started)
        return None

    def cancel(self) -> None:
        """End the walk where it stands; the shadow keeps its values and loses its gradient."""
        self.ended = True
        self._segments.close()
        self.shadow.drop_gradient()

    def _run(self) -> Segments:
        self.shadow.drop_gradient()
        program = self._record()
        inputs, hidden = yield from self._forward(program)
        served = yield from self._served_states(program)
        tally, gradient = yield from self._loss(hidden, served)
        self._check_loss(tally)
        yield from self._backward(program, inputs, gradient)
        return tally, self.shadow.step()

    def _record(self) -> Program:
        lesson = self.lesson
        view = LessonView(
            self._store,
            layers=len(self._model.layers),
            slot=lesson.slot,
            prefix_tokens=lesson.start,
            states=lesson.prefix_states,
        )
        tokens = torch.tensor([lesson.tokens])
        positions = torch.arange(lesson.start, lesson.start + len(lesson.tokens))[None]
        with torch.no_grad():
            return self._model.record(tokens, positions, view)

    def _forward(self, program: Program) -> Generator[None, None, tuple[list[Tensor], Tensor]]:
        inputs, hidden = [], program.entry
        for layer in range(len(program.calls)):
            inputs.append(hidden)
            with torch.no_grad(), self._plan.using(Use(self.shadow.name)):
                hidden = self._model.run_layer(program, layer, hidden)
            self._note_memory()
            yield
        return inputs, hidden

    def _served_states(self, program: Program) -> Generator[None, None, Tensor]:
        """The run's final states [R, H] under the stable set: kept by the slot, or one more forward."""
        if self.lesson.served_states is not None:
            return self.lesson.served_states
        hidden = program.entry
        for layer in range(len(program.calls)):
            with torch.no_grad(), self._plan.using(*self.lesson.served_uses):
                hidden = self._model.run_layer(program, layer, hidden)
            yield
        with torch.no_grad():
            return self._model.finish(hidden)[0]

    def _loss(self, hidden: Tensor, served: Tensor) -> Generator[None, None, tuple[_Tally, Tensor]]:
        tally, gradient = _Tally(), torch.empty_like(hidden)
        slices = loss_slices(
            hidden[0],
            gradient[0],
            self.lesson.rows,
            lambda states: self._model.logits(self._model.finish(states)),
            vocabulary=self._model.vocabulary,
            served=served,
            served_head=torch.no_grad()(self._model.logits),
        )
        for part in slices:
            tally.add(part)
            self._note_memory()
            yield
        return tally, gradient

    def _backward(self, program: Program, inputs: list[Tensor], gradient: Tensor) -> Generator[None, None, None]:
        for layer in reversed(range(len(program.calls))):
            leaf = inputs.pop().detach().requires_grad_(layer > 0)
            with torch.enable_grad(), self._plan.using(Use(self.shadow.name)):
                output = self._model.run_layer(program, layer, leaf)
            self._note_memory()
            if output.requires_grad:
                torch.autograd.backward(output, gradient)
            if layer > 0:
                assert leaf.grad is not None, f"layer {layer} gave its input no gradient"
                gradient = leaf.grad
            yield

    def _check_loss(self, tally: _Tally) -> None:
        worst = next((i for i, loss in tally.row_losses.items() if not math.isfinite(loss)), None)
        if worst is None and math.isfinite(tally.loss):
            return
        position = self.lesson.start + (worst or 0)
        raise LessonRefused(
            "nonfinite_loss",
            f"the loss is {tally.loss}: the row at position {position} has no finite loss under the shadow. "
            "Nothing was changed; roll the adapter back if its weights have grown out of range",
            position=position,
        )

    def _note_memory(self) -> None:
        self._peak_bytes = max(self._peak_bytes, resident_bytes() - self._resident_before)

    def _learned(self, tally: _Tally, step: StepTaken) -> LessonLearned:
        count = len(self.lesson.tokens)
        return LessonLearned(
            loss=tally.loss,
            row_losses=tuple(tally.row_losses.get(i) for i in range(count)),
            kl_served=tally.kl_sum / max(1, len(tally.row_losses)),
            step=step,
            steps=self.shadow.steps,
            learning_seconds=math.fsum(self._seconds),
            segments=len(self._seconds),
            longest_segment_seconds=max(self._seconds),
            peak_bytes=self._peak_bytes,
        )
