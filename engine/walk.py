"""The walk: the exact backward pass of one lesson, a layer at a time, in segments the engine may serve between.

Letters: `R` rows of the run, `C` rows of a chunk, `H` hidden size.

- The objective is the run, given everything before it as served: the prefix is a constant read from the
  slot's cache, and nothing is written to it.
- Forward under the shadow, chunk by chunk, layer by layer; head and loss in slices of rows; backward chunks last
  to first, layers last to first; then one optimizer step.
- A layer's graph of the forward pass is kept where all of them fit the lesson's budget, and rebuilt from the
  layer's kept input [C, H] where not. It is the same step, to the byte.
- A segment is one layer of one chunk, half of a slice of the head, or half of the step. Between two segments the
  engine may do anything but change the slot's prefix rows.
- However a walk ends other than by its step, the shadow is what it was, to the byte.
"""

import math
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.cache import KeyValueStore
from engine.errors import LessonRefused
from engine.lora import RowPlan, Use
from engine.loss import LabelledRows, SliceLoss, loss_slices
from engine.memory import resident_bytes
from engine.model import LayeredModel, Program
from engine.pace import Pace
from engine.recurrent import SlotState
from engine.run_view import Handed, LessonView, RunLinks
from engine.shadow import Shadow, StepTaken


@dataclass(frozen=True, slots=True)
class Lesson:
    """One run to learn: tokens[i] is fed at position start + i of the slot and should predict targets[i].

    `lr` is the learning rate of its step, if not the shadow's own.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    rows: LabelledRows
    served_uses: tuple[Use, ...] = ()
    served_states: Tensor | None = None
    prefix_states: SlotState | None = None
    lr: float | None = None


@dataclass(frozen=True, slots=True)
class WalkForm:
    """How a run is walked: rows of a chunk at most, and whether the forward pass's graphs are kept."""

    chunk_rows: int
    keeps_graphs: bool = False


@dataclass(frozen=True, slots=True)
class LossAfter:
    """A lesson's loss and that of each of its rows, as `LessonLearned` has them, after its step."""

    loss: float
    row_losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LessonLearned:
    """A lesson's step, and what it was worth. Losses are before the step, in nats; KL(served ‖ shadow) too.

    `after` is there if it was measured; its time is none of the lesson's.
    """

    loss: float
    row_losses: tuple[float | None, ...]
    kl_served: float
    step: StepTaken
    steps: int
    learning_seconds: float
    segment_seconds: tuple[float, ...]
    peak_bytes: int
    chunk_rows: int
    after: LossAfter | None = None


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


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows first … stop − 1 of the run, with their recorded layer calls and what they see."""

    index: int
    first: int
    stop: int
    program: Program
    view: LessonView


@dataclass(frozen=True, slots=True)
class _Graph:
    """One layer of one chunk: the leaf it started from, and what came of it."""

    leaf: Tensor
    output: Tensor
    handed: Handed


Segments = Generator[None, None, tuple[_Tally, StepTaken]]


class Walk:
    """One lesson on its way. `advance` runs a segment; `cancel` ends it and leaves nothing behind.

    Raises:
        LessonRefused: from `advance`: `nonfinite_loss` or `nonfinite_gradient`; the shadow is as it was.
    """

    def __init__(
        self,
        model: LayeredModel,
        plan: RowPlan,
        store: KeyValueStore,
        shadow: Shadow,
        lesson: Lesson,
        form: WalkForm,
        pace: Pace,
    ) -> None:
        self.lesson = lesson
        self.shadow = shadow
        self.form = form
        self.model = model
        self._plan = plan
        self._store = store
        self._pace = pace
        self._layers = len(model.layers)
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
        served = self.lesson.served_states
        if served is None:
            served = yield from self.final_states(self.lesson.served_uses)
        links, own = RunLinks(), (Use(self.shadow.name),)
        chunks = self._chunks(links)
        inputs: dict[tuple[int, int], Tensor | _Graph] = {}
        hidden = []
        for chunk in chunks:
            state = chunk.program.entry
            for layer in range(self._layers):
                graph = self._run_layer(chunk, layer, state, own, learns=self.form.keeps_graphs)
                links.add(chunk.index, layer, graph.handed, learns=True)
                inputs[chunk.index, layer] = graph if self.form.keeps_graphs else graph.leaf.detach()
                state = graph.output.detach()
                yield
            hidden.append(state)
        tally, gradient = yield from self._loss(torch.cat(hidden, dim=1), served)
        self._check_loss(tally)
        for chunk in reversed(chunks):
            yield from self._backward(chunk, links, inputs, gradient[:, chunk.first : chunk.stop])
        prepared = self.shadow.prepare()
        yield
        return tally, self.shadow.step(prepared, lr=self.lesson.lr)

    def _chunks(self, links: RunLinks) -> list[_Chunk]:
        """Record the layer calls of every chunk."""
        return [
            self._record(links, index, first)
            for index, first in enumerate(range(0, len(self.lesson.tokens), self.form.chunk_rows))
        ]

    def _record(self, links: RunLinks, index: int, first: int) -> _Chunk:
        lesson = self.lesson
        tokens = lesson.tokens[first : first + self.form.chunk_rows]
        start = lesson.start + first
        view = LessonView(
            self._store,
            links,
            layers=self._layers,
            slot=lesson.slot,
            prefix_tokens=lesson.start,
            chunk=index,
            chunk_start=start,
            prefix_states=lesson.prefix_states,
        )
        positions = torch.arange(start, start + len(tokens))[None]
        with torch.no_grad():
            program = self.model.record(torch.tensor([tokens]), positions, view)
        return _Chunk(index, first, first + len(tokens), program, view)

    def _run_layer(
        self, chunk: _Chunk, layer: int, state: Tensor, uses: tuple[Use, ...], *, learns: bool
    ) -> _Graph:
        """One layer of one chunk from its input [1, C, H]; with `learns`, as a graph of its own."""
        leaf = state.detach().requires_grad_(learns and layer > 0)
        with torch.set_grad_enabled(learns), self._plan.using(*uses):
            output = self.model.run_layer(chunk.program, layer, leaf)
        self._note_memory()
        return _Graph(leaf, output, chunk.view.handed_on())

    def final_states(self, uses: tuple[Use, ...]) -> Generator[None, None, Tensor]:
        """The run's final states [R, H] under those adapters, by a forward pass of their own."""
        links, states = RunLinks(), []
        for chunk in self._chunks(links):
            state = chunk.program.entry
            for layer in range(self._layers):
                graph = self._run_layer(chunk, layer, state, uses, learns=False)
                links.add(chunk.index, layer, graph.handed, learns=False)
                state = graph.output
                yield
            with torch.no_grad():
                states.append(self.model.finish(state)[0])
        return torch.cat(states)

    def _loss(self, hidden: Tensor, served: Tensor) -> Generator[None, None, tuple[_Tally, Tensor]]:
        tally, gradient = _Tally(), torch.empty_like(hidden)
        slices = loss_slices(
            hidden[0],
            gradient[0],
            self.lesson.rows,
            lambda states: self.model.logits(self.model.finish(states)),
            vocabulary=self.model.vocabulary,
            served=served,
            served_head=torch.no_grad()(self.model.logits),
        )
        for part in slices:
            if part is not None:
                tally.add(part)
            self._note_memory()
            yield
        return tally, gradient

    def _backward(
        self,
        chunk: _Chunk,
        links: RunLinks,
        inputs: dict[tuple[int, int], Tensor | _Graph],
        gradient: Tensor,
    ) -> Generator[None, None, None]:
        """One chunk, layers last to first: the gradients of what it handed on are on the leaves."""
        for layer in reversed(range(self._layers)):
            graph = inputs.pop((chunk.index, layer))
            if isinstance(graph, Tensor):
                graph = self._run_layer(chunk, layer, graph, (Use(self.shadow.name),), learns=True)
            leaves = links.take(chunk.index, layer)
            asked = [(graph.output, gradient)]
            asked += [
                (held, grad) for name, held in graph.handed.items() if (grad := leaves[name].grad) is not None
            ]
            wanted = [(held, grad) for held, grad in asked if held.requires_grad]
            if wanted:
                torch.autograd.backward([held for held, _ in wanted], [grad for _, grad in wanted])
            if layer > 0:
                assert graph.leaf.grad is not None, f"layer {layer} gave its input no gradient"
                gradient = graph.leaf.grad
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
        chunk_rows = min(self.form.chunk_rows, count)
        self._pace.walked(chunk_rows, statistics.median(self._seconds))
        return LessonLearned(
            loss=tally.loss,
            row_losses=tuple(tally.row_losses.get(i) for i in range(count)),
            kl_served=tally.kl_sum / max(1, len(tally.row_losses)),
            step=step,
            steps=self.shadow.steps,
            learning_seconds=math.fsum(self._seconds),
            segment_seconds=tuple(self._seconds),
            peak_bytes=self._peak_bytes,
            chunk_rows=chunk_rows,
        )
