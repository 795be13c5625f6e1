"""The lane: which turn gets which slot, what each batch holds, and when a lesson's next segment runs.

- `tick` does at most one learning segment and one serving step, so that nobody who is served waits longer
  than one segment: as many of a walk's pieces as fit into the time of a decode step.
- Prompts are served in chunks, in turn with decode steps: a long prompt does not stop the others' replies.
- A lesson rides the batch that serves the last chunk of its turn's prompt; one that cannot start then rides a
  later batch, or a batch of its own. One walk at a time.
- A lesson that cannot start is refused and reported; the turn it came with goes on as if without it.
- A turn that fails, its constraint included, ends alone. One on hold keeps its slot from other turns, not from
  lessons, until it is let go.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer

from engine.admission import check_order
from engine.batch import Batch, Row, serving_rows
from engine.duty import DutyMeter
from engine.engine import Engine
from engine.errors import LessonRefused
from engine.lesson_queue import Boarding, LessonQueue
from engine.live_lesson import LiveLesson, cancelled, refusal_of, rows_of
from engine.live_turn import LiveTurn
from engine.loss_after import MeasureAfter
from engine.orders import (
    EndReason,
    Event,
    LessonEnded,
    LessonOrder,
    LessonStarted,
    TurnEnded,
    TurnOrder,
    TurnStarted,
)
from engine.sampling import Sampler
from engine.slots import BASE, Slot, choose_slot
from engine.text import ReplyText

logger = logging.getLogger(__name__)


class Lane:
    """Serves turns and walks lessons on one engine. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        duty: DutyMeter | None = None,
        clock: Callable[[], float] = time.perf_counter,
        measure_after: MeasureAfter = "never",
    ) -> None:
        self.engine = engine
        self.duty = duty or DutyMeter()
        self._tokenizer = tokenizer
        self._clock = clock
        self._measure_after = measure_after
        self._queue: deque[tuple[TurnOrder, float]] = deque()
        self._live: dict[str, LiveTurn] = {}
        self._holds: dict[str, Slot | None] = {}
        self._stalled = False
        self._lessons = LessonQueue()
        self._walking: LiveLesson | None = None
        self._prefill_next = True
        self._events: list[Event] = []

    @property
    def serving(self) -> bool:
        """Is any turn being served, or waiting to be?"""
        return bool(self._live or self._queue)

    @property
    def has_work(self) -> bool:
        """Would a tick do anything? Not while all that waits needs a slot that is held."""
        return (self.serving or self.learning) and not self._stalled

    @property
    def learning(self) -> bool:
        """Is any lesson walking or waiting?"""
        return self._walking is not None or bool(self._lessons)

    def wait_seconds(self) -> float:
        """How long until a lesson's next segment may run, if the serving goes on as it is; 0 if none waits."""
        return self.duty.wait_seconds(self._clock(), serving=bool(self._live)) if self.learning else 0.0

    def submit(self, order: TurnOrder, lessons: Sequence[LessonOrder] = ()) -> None:
        """Queue a turn, and the lessons that ride it.

        Raises:
            TurnRejected: it cannot be served as asked.
        """
        check_order(order, self.engine)
        self._queue.append((order, self._clock()))
        self._stalled = False
        if order.hold:
            self._holds[order.id] = None
        for lesson in lessons:
            self.learn(lesson)

    def keep(self, lesson: str, *, stable: str, prefix: Sequence[int]) -> None:
        """Until the lesson ends or is released, take a slot that holds its prefix last for anything else."""
        self._lessons.keep(lesson, stable=stable, prefix=prefix)

    def release(self, lesson: str) -> None:
        """The lesson needs its prefix no longer."""
        self._lessons.release(lesson)

    def learn(self, order: LessonOrder) -> None:
        """Queue a lesson; what becomes of it is an event."""
        self._lessons.add(order)
        self._stalled = False

    def cancel(self, turn: str) -> None:
        """End a turn now, queued or live, and let it go; its slot is free at once."""
        self.let_go(turn)
        started = turn in self._live and not self._live[turn].prompt_left
        if not started:  # its lessons would find no prefix served
            self.cancel_lessons(self._lessons.riding(turn))
        if turn in self._live:
            self._end(self._live[turn], "cancelled")
        for entry in [entry for entry in self._queue if entry[0].id == turn]:
            self._queue.remove(entry)
            self._events.append(TurnEnded(turn, "cancelled", total_seconds=self._clock() - entry[1]))

    def let_go(self, turn: str) -> None:
        """Hold that turn's slot no longer; of a turn that has not ended, it will not be held."""
        slot = self._holds.pop(turn, None)
        if slot is not None:
            slot.busy, slot.used_at = False, self._clock()
            self._stalled = False

    def cancel_lessons(self, lessons: Collection[str]) -> None:
        """End those lessons that have not taken their step; their shadows are what they were."""
        walking = self._walking
        if walking and walking.order.id in lessons and walking.learned is None:
            walking.walk.cancel()
            self._lesson_over(walking.order, cancelled())
        elif walking and walking.learned is not None:
            self._learned(walking.finish())
        for order in self._lessons.take(lessons):
            self._lesson_over(order, cancelled())

    def retire_stables(self, keep: Collection[str]) -> None:
        """Forget the stable sets that are not kept, and what idle slots hold of them, unless they are in use."""
        used = {order.stable for order, _ in self._queue}
        used |= {slot.stable for slot in self.engine.slots if slot.busy}
        if self._walking is not None:
            used.add(self._walking.slot.stable)
        own = set(self.engine.bank.names) - self.engine.shadows.keys() - used - set(keep)
        for slot in self.engine.slots:
            if slot.stable in own:
                self.engine.rekey(slot.index, BASE)
        for name in own:
            self.engine.bank.drop(name)

    def tick(self) -> list[Event]:
        """Do the next piece of work; returns what happened."""
        self._admit()
        self._advance_walk()
        self._serve()
        self._stalled = not self._live and self._walking is None and not self._events
        return self.drain()

    def drain(self) -> list[Event]:
        """What happened since it was last asked, by calls as by ticks."""
        events, self._events = self._events, []
        return events

    def _admit(self) -> None:
        for order, submitted_at in list(self._queue):
            slot = self._slot_for(order)
            if slot is None:
                continue
            self._queue.remove((order, submitted_at))
            self._start(order, slot, submitted_at)

    def _slot_for(self, order: TurnOrder) -> Slot | None:
        slots = self.engine.slots if order.slot is None else [self.engine.slots[order.slot]]
        return choose_slot(slots, order.tokens, order.stable, needed=self._lessons.needed_tokens)

    def _start(self, order: TurnOrder, slot: Slot, submitted_at: float) -> None:
        shared = slot.shared_with(order.tokens, order.stable)
        if slot.stable == order.stable:
            self.engine.cut(slot.index, tokens=shared)
        else:
            self.engine.rekey(slot.index, order.stable)
        slot.busy = True
        sampler = Sampler(order.sampling, prompt=order.tokens, constraint=order.constraint)
        text = ReplyText(self._tokenizer, order.stop)
        self._live[order.id] = LiveTurn(order, slot, shared, submitted_at, sampler, text)
        self._events.append(TurnStarted(order.id, slot.index, shared))

    def _advance_walk(self) -> None:
        walking = self._walking
        if walking is None:
            return
        if walking.ended(serving=self.serving) is None and not self._run_segment(walking):
            return
        over = walking.ended(serving=self.serving)
        if over is not None:
            self._learned(over)

    def _run_segment(self, walking: LiveLesson) -> bool:
        """Run the lesson's next segment if it may; returns whether the lesson goes on."""
        serving = bool(self._live)  # a turn that waits for the walk's own slot is not being served
        if not self.duty.may_learn(self._clock(), serving=serving):
            return True
        started = self._clock()
        try:
            walking.advance(self.engine.pace.segment_seconds, serving=self.serving)
        except Exception as error:  # a lesson's border: it costs a lesson, never a conversation
            self._lesson_over(walking.order, refusal_of(error))
            return False
        finally:
            ended = self._clock()
            self.duty.learned(started=started, ended=ended)
            walking.held_up_seconds += ended - started if serving else 0.0
        return True

    def _learned(self, over: LessonEnded) -> None:
        assert self._walking is not None, f"lesson {over.lesson} does not walk"
        over = replace(over, held_up_seconds=self._walking.held_up_seconds)
        self._walk_over()
        self.release(over.lesson)
        self._events.append(over)

    def _serve(self) -> None:
        rows = self._next_rows()
        started = self._next_lesson(rows)
        if started is None:
            if rows:
                self._take_logits(rows, self.engine.step(Batch(rows)).logits)
            return
        order, slot = started
        try:
            step = self.engine.step(
                Batch((*rows, *rows_of(order, slot))),
                shadows={slot.index: order.shadow},
                rates={} if order.lr is None else {slot.index: order.lr},
            )
        except LessonRefused as refused:
            self._lesson_over(order, refused)
            step = self.engine.step(Batch(rows))
        else:
            self._walking = LiveLesson(order, step.walks[0], slot, self._measure_after)
            slot.pinned_tokens = len(order.prefix)
            self._events.append(LessonStarted(order.id, slot.index, order.rides))
        self._take_logits(rows, step.logits)

    def _next_rows(self) -> tuple[Row, ...]:
        """The next serving step: a chunk of one prompt, or a decode step of every reply, in turn."""
        prefill = next((live for live in self._live.values() if live.prompt_left), None)
        decoding = [live for live in self._live.values() if live.reply]
        if prefill and (self._prefill_next or not decoding):
            self._prefill_next = False
            held, chunk = len(prefill.slot.tokens), self.engine.settings.ubatch_rows
            tokens = prefill.order.tokens[held : held + chunk]
            last = prefill.prompt_left <= chunk
            return serving_rows(prefill.slot.index, held, tokens, outputs=int(last))
        self._prefill_next = True
        decoding.sort(key=lambda live: live.slot.index)  # neighbours attend together
        return tuple(Row(live.reply[-1], len(live.slot.tokens), live.slot.index, output=True) for live in decoding)

    def _take_logits(self, rows: tuple[Row, ...], logits: torch.Tensor) -> None:
        live = {turn.slot.index: turn for turn in self._live.values()}
        outputs = [row for row in rows if row.output]
        for row, distribution in zip(outputs, logits, strict=True):
            turn = live[row.slot]
            try:
                served = turn.draw(distribution, now=self._clock())
                reason = turn.reason_to_end(context_tokens=self.engine.settings.context_tokens)
            except Exception as error:  # a turn's border: the others go on
                logger.error("a turn failed", exc_info=error)
                self._end(turn, "failed", error=str(error))
                continue
            self._events.append(served)
            if reason is not None:
                self._end(turn, reason)

    def _end(self, live: LiveTurn, reason: EndReason, *, error: str | None = None) -> None:
        now = self._clock()
        self._events.append(live.end(reason, now=now, error=error))
        if live.order.id in self._holds:
            self._holds[live.order.id] = live.slot
        else:
            live.slot.busy, live.slot.used_at = False, now
        del self._live[live.order.id]

    def _next_lesson(self, rows: tuple[Row, ...]) -> tuple[LessonOrder, Slot] | None:
        """The first lesson that may start with this batch, and the slot that holds its prefix."""
        if self._walking is not None or not self._lessons:
            return None
        finishing = {row.slot for row in rows if row.output}
        unserved = {order.id for order, _ in self._queue} | {
            turn for turn, live in self._live.items() if live.prompt_left and live.slot.index not in finishing
        }
        served = {turn: slot for turn, slot in self._holds.items() if slot is not None}
        served |= {turn: live.slot for turn, live in self._live.items()}
        for order, found in self._lessons.ready(Boarding(rows, self.engine.slots, served, unserved)):
            if isinstance(found, Slot):
                return order, found
            self._lesson_over(order, found)
        return None

    def _lesson_over(self, order: LessonOrder, refused: LessonRefused) -> None:
        held_up = 0.0
        self.release(order.id)
        if self._walking and self._walking.order is order:
            held_up = self._walking.held_up_seconds
            self._walk_over()
        self._events.append(LessonEnded(order.id, refused, held_up))

    def _walk_over(self) -> None:
        assert self._walking is not None
        self._walking.slot.pinned_tokens = 0
        self._walking = None
