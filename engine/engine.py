"""The engine: a model, its slots, its adapters, and `step`, the one path through them.

Letters: `B` slots in a pass, `T` rows a slot, `H` hidden size, `V` vocabulary, `S` slots, `N` context tokens.

- `step` checks the whole batch before it changes anything; a refusal leaves every slot as it was.
- Unlabelled rows are served, in passes of one row for each of several slots (decode) or of one slot's run
  (prefill). They never share a matrix product with labelled rows: a batch's serving is bit for bit the same
  with its labels and without.
- Labelled rows come back as walks, to be advanced between other steps. They read the slot and write nothing.
- Recurrent layers cannot be cut back. A slot keeps checkpoints of their states one row before the end of a
  prompt, where a lesson on the reply begins, and at its end, where the next turn may go on: the prompt's last
  row has a pass of its own. A model without such layers is served in the passes it would have had anyway.
- Every slot keeps the final state of its rows, so that the distribution a row was served with is a head away.
- One thread owns an engine. Nothing here is shared between two engines.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.batch import Batch, Run
from engine.budget import (
    CHUNK_ROWS,
    LEAST_RECURRENT_CHUNK,
    LESSON_BYTES,
    measure_row_bytes,
    plan_walk,
)
from engine.cache import KeyValueStore, ServingView
from engine.errors import LessonRefused
from engine.lora import AdapterBank, AdapterShape, Use
from engine.loss import LabelledRows
from engine.memory import lesson_room
from engine.model import LayeredModel
from engine.pace import Pace
from engine.packed import Repack, repack
from engine.passes import Pass, ends_prompt, plan_passes, shapes_of
from engine.recurrent import CHECKPOINT_BYTES, RecurrentStates, ServingStates, SlotState
from engine.shadow import OptimizerSettings, Shadow
from engine.slots import BASE, Slot
from engine.walk import Lesson, Walk, WalkForm


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's dimensions.

    `ubatch_rows` is the most rows of one slot that a serving pass takes; `checkpoint_bytes` what all checkpoints
    of recurrent states may take together.
    """

    slots: int = 4
    context_tokens: int = 4096
    ubatch_rows: int = 256
    repack: Repack = "off"
    checkpoint_bytes: int = CHECKPOINT_BYTES
    lesson_bytes: int = LESSON_BYTES
    chunk_rows: int = CHUNK_ROWS
    adapters: AdapterShape = field(default_factory=AdapterShape)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)


@dataclass(frozen=True, slots=True)
class Step:
    """What a batch gave: logits [n, V] of its served output rows, in their order, and a walk for each lesson."""

    logits: Tensor
    walks: tuple[Walk, ...]


class Engine:
    """One model with its slots and adapters."""

    def __init__(self, model: PreTrainedModel, settings: EngineSettings) -> None:
        self.settings = settings
        self.bank = AdapterBank(model, settings.adapters)
        self.packing = repack(model, self.bank, settings.repack)
        self.model = LayeredModel(model)
        self.store = KeyValueStore(slots=settings.slots, context_tokens=settings.context_tokens)
        self.recurrent = (
            RecurrentStates(slots=settings.slots, checkpoint_bytes=settings.checkpoint_bytes)
            if self.model.recurrent
            else None
        )
        positions = self.recurrent.positions if self.recurrent else (None,) * settings.slots
        self.slots = [Slot(index, checkpoints=positions[index]) for index in range(settings.slots)]
        self.shadows: dict[str, Shadow] = {}
        self.pace = Pace(settings.chunk_rows)
        self._row_bytes = measure_row_bytes(self.model, recurrent=self.recurrent is not None)
        shape = (settings.slots, settings.context_tokens, self.model.hidden_size)
        self._states = torch.zeros(shape, dtype=self.model.dtype)  # [S, N, H]

    def close(self) -> None:
        """Own nothing more: the model is as it came (packed weights stay packed)."""
        self.model.close()
        self.bank.close()

    def add_shadow(self, name: str, *, seed: int) -> Shadow:
        """A new shadow of that name, whose term is zero; its first values depend on `seed` alone."""
        self.bank.create(name, seed=seed)
        self.shadows[name] = Shadow(self.bank, name, self.settings.optimizer)
        return self.shadows[name]

    def step(
        self,
        batch: Batch,
        *,
        shadows: Mapping[int, str] | None = None,
        rates: Mapping[int, float] | None = None,
    ) -> Step:
        """Serve the batch's unlabelled rows; hand back a walk for each slot's labelled run.

        Args:
            batch: rows; the unlabelled ones of a slot must follow what it holds.
            shadows: by slot, the shadow that the slot's labelled rows train.
            rates: by slot, the learning rate of that step, where it is not the shadow's own.

        Raises:
            LessonRefused: `past_context`, `unserved_prefix`, `repacked_weights`, `recurrent_state_missing`,
                `adapter_unknown`. Nothing was changed.
        """
        served, labelled = batch.served_runs(), batch.labelled_runs()
        for run in served:
            self._check_served(run)
        before = {run.slot: run for run in served}
        for run in labelled:
            self._check_labelled(run, before.get(run.slot))
        chosen = [self._shadow(run, shadows or {}) for run in labelled]
        forms = [self._form(run) for run in labelled]
        logits = self._serve(served)
        walks = tuple(
            self._walk(run, shadow, form, (rates or {}).get(run.slot))
            for run, shadow, form in zip(labelled, chosen, forms, strict=True)
        )
        if self.recurrent is not None:
            self.recurrent.evict()
        return Step(logits=logits, walks=walks)

    def cut(self, slot: int, *, tokens: int) -> None:
        """Forget what the slot holds from position `tokens` on: another turn begins there."""
        held = self.slots[slot]
        assert held.pinned_tokens <= tokens <= len(held.tokens), (held.pinned_tokens, tokens)
        assert held.reachable(tokens) == tokens, f"slot {slot} has no checkpoint after {tokens} rows"
        if self.recurrent is not None and tokens < len(held.tokens):
            self.recurrent.cut(slot, position=tokens)
        del held.tokens[tokens:]
        held.served.cut(tokens)
        held.replying = False

    def rekey(self, slot: int, stable: str) -> None:
        """Empty the slot and serve it with another stable set from now on."""
        self.cut(slot, tokens=0)
        self.slots[slot].stable = stable

    def served_logits(self, slot: int, position: int) -> Tensor:
        """The logits [V] that the row at `position` was served with, from its kept state."""
        with torch.no_grad():
            return self.model.logits(self._states[slot, position][None])[0]

    def _serve(self, runs: tuple[Run, ...]) -> Tensor:
        """Serve every run; logits of their output rows, in the order of the batch's slots."""
        logits: dict[tuple[int, int], Tensor] = {}
        outputs = [(run.slot, row.position) for run in runs for row in run.rows if row.output]
        for part in plan_passes(runs, self.slots, ubatch_rows=self.settings.ubatch_rows):
            self.run_pass(part)
            wanted = [key for key in outputs if key not in logits and key[1] < len(self.slots[key[0]].tokens)]
            if wanted:
                states = torch.stack([self._states[slot, position] for slot, position in wanted])
                with torch.no_grad():
                    logits |= dict(zip(wanted, self.model.logits(states), strict=True))
        for run in runs:
            self.slots[run.slot].replying = run.rows[-1].output
        if not outputs:
            return torch.empty(0, self.model.vocabulary)
        return torch.stack([logits[key] for key in outputs])

    def run_pass(self, part: Pass) -> None:
        """Serve one pass: its rows go through the layers together and are kept."""
        rows, started = len(part.tokens[0]), time.perf_counter()
        states = self._states_before(part)
        view = ServingView(
            self.store, layers=len(self.model.layers), slots=part.slots, starts=part.starts, states=states
        )
        positions = torch.tensor(part.starts)[:, None] + torch.arange(rows)[None]  # [B, T]
        with torch.no_grad(), self.bank.plan.using(*self._uses(part.slots, rows)):
            final = self.model.run(self.model.record(torch.tensor(part.tokens), positions, view))
        shapes = shapes_of(part, [self.slots[slot].stable for slot in part.slots])
        for i, (slot, start) in enumerate(zip(part.slots, part.starts, strict=True)):
            self._states[slot, start : start + rows] = final[i]
            self.slots[slot].tokens.extend(part.tokens[i])
            self.slots[slot].served.add(shapes[i])
        self._take_states(part, states)
        if rows == 1:
            self.pace.served(time.perf_counter() - started)

    def _states_before(self, part: Pass) -> ServingStates | None:
        """The recurrent states the pass goes on from."""
        if self.recurrent is None:
            return None
        self._keep_states(self.recurrent, part.ending)
        return ServingStates([self.recurrent.now(slot) for slot in part.slots])

    def _take_states(self, part: Pass, states: ServingStates | None) -> None:
        """The recurrent states the pass hands on."""
        if self.recurrent is None or states is None:
            return
        for slot, state in zip(part.slots, states.split(), strict=True):
            self.recurrent.advance(slot, state)
        self._keep_states(self.recurrent, part.ending)

    def _keep_states(self, recurrent: RecurrentStates, slots: Iterable[int]) -> None:
        for slot in slots:
            recurrent.keep(slot, position=len(self.slots[slot].tokens))

    def _uses(self, slots: tuple[int, ...], rows: int) -> tuple[Use, ...]:
        """Each stable set of the pass's slots, with the rows it applies to."""
        stables = [self.slots[slot].stable for slot in slots for _ in range(rows)]
        if len(set(stables)) == 1:
            return () if stables[0] == BASE else (Use(stables[0]),)
        order = sorted(range(len(stables)), key=lambda row: (stables[row], row))
        grouped = groupby(order, key=lambda row: stables[row])
        return tuple(Use(name, torch.tensor(list(index))) for name, index in grouped if name != BASE)

    def _walk(self, run: Run, shadow: Shadow, form: WalkForm, lr: float | None) -> Walk:
        slot = self.slots[run.slot]
        labels = [row.label for row in run.rows if row.label is not None]
        as_served = tuple(slot.tokens[run.start : run.stop]) == run.tokens
        lesson = Lesson(
            slot=run.slot,
            start=run.start,
            tokens=run.tokens,
            rows=LabelledRows(tuple(x.target for x in labels), tuple(x.weight for x in labels)),
            served_uses=() if slot.stable == BASE else (Use(slot.stable),),
            served_states=self._states[run.slot, run.start : run.stop].clone() if as_served else None,
            prefix_states=self._prefix_states(run),
            lr=lr,
        )
        return Walk(self.model, self.bank.plan, self.store, shadow, lesson, form, self.pace)

    def _form(self, run: Run) -> WalkForm:
        """How the run is walked within the lesson's budget; refuses what does not fit."""
        return plan_walk(
            len(run.rows),
            self._row_bytes,
            room=lesson_room(self.model.device, most=self.settings.lesson_bytes),
            chunk_rows=self.pace.chunk_rows,
            least_chunk=1 if self.recurrent is None else LEAST_RECURRENT_CHUNK,
        )

    def _prefix_states(self, run: Run) -> SlotState | None:
        if self.recurrent is None:
            return None
        at_end = run.start == len(self.slots[run.slot].tokens)
        return self.recurrent.now(run.slot) if at_end else self.recurrent.checkpoint(run.slot, run.start)

    def _check_served(self, run: Run) -> None:
        held = len(self.slots[run.slot].tokens)
        expected = tuple(range(held, held + len(run.rows)))
        given = tuple(row.position for row in run.rows)
        assert given == expected, f"slot {run.slot} holds {held} rows; rows at {given} do not follow them"
        self._check_context(run)

    def _check_labelled(self, run: Run, served: Run | None) -> None:
        """Check a labelled run, given what the batch serves its slot before."""
        self._check_context(run)
        held = len(self.slots[run.slot].tokens) if served is None else served.stop
        if run.start > held:
            raise LessonRefused(
                "unserved_prefix",
                f"the lesson's run starts at position {run.start} of slot {run.slot}, which was served "
                f"{held} rows; everything before a run must have been served",
                position=held,
            )
        if self.packing.mode == "serve":
            raise LessonRefused(
                "repacked_weights",
                "this lane serves from packed weights, which have no backward; "
                "start it with --repack both, or off, to let it learn",
            )
        if self.recurrent is not None:
            kept = {0, held, *self.recurrent.positions[run.slot]}
            if served is not None and ends_prompt(served, self.slots[run.slot]):
                kept.add(held - 1)
            _check_prefix_states(run, kept)

    def _check_context(self, run: Run) -> None:
        if run.stop > self.settings.context_tokens:
            raise LessonRefused(
                "past_context",
                f"the run of slot {run.slot} ends at position {run.stop - 1}; the slot's context has "
                f"{self.settings.context_tokens} tokens: start the lane with a larger --ctx",
                position=self.settings.context_tokens,
            )

    def _shadow(self, run: Run, shadows: Mapping[int, str]) -> Shadow:
        name = shadows.get(run.slot)
        if name is None or name not in self.shadows:
            raise LessonRefused(
                "adapter_unknown",
                f"the labelled rows of slot {run.slot} train the shadow {name!r}; "
                f"this lane has {sorted(self.shadows)}: add the shadow first",
            )
        return self.shadows[name]


def _check_prefix_states(run: Run, kept: set[int]) -> None:
    """Check that a lesson's run starts after a number of rows for which the slot has its recurrent states."""
    if run.start not in kept:
        raise LessonRefused(
            "recurrent_state_missing",
            f"the lesson's run starts at position {run.start} of slot {run.slot}; the model's recurrent layers "
            f"need their states after {run.start} rows, and the slot has them after {sorted(kept)} rows only: "
            "begin the run at the last row of a served prompt, and give checkpoints more bytes if it was evicted",
            position=run.start,
        )
