"""A lane under load, tick by tick: every slot serves turn after turn, and lessons ride them.

- A turn depends on its slot, its number and what the slot holds, and asks for that slot: which turns are served,
  and how, does not depend on lessons unless serving does.
- Time is counted in ticks with a serving step. Turns are submitted and cancelled by that count, so that with
  lessons and without the same rows share a batch.
- A turn that would overwrite the prefix that a walk reads would wait for it. That lesson is cancelled first, so
  that no turn waits for a lesson.
- At rest nothing is served or learned, and the slots are empty.
"""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass

import torch

from engine.lane import Lane
from engine.orders import Event, LessonEnded, LessonStarted, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampling
from engine.slots import Slot
from engine.walk import LessonLearned
from tests.engine.soak_lessons import REFUSALS, lesson_on, reply_lesson

MOST_WAITING = 3
"""Lessons that wait or walk, at most: one nearly always walks, and few grow so old that their prefix is gone."""

END_TOKEN_EVERY = 40
"""One token in so many ends a reply: some end before their time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How long prompts and replies are at most, in tokens, and what each slot is served with and learns."""

    vocabulary: int
    context: int
    prompt: int
    reply: int
    stables: tuple[str, ...]
    shadows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """A turn that has ended, what its slot holds then, and how far every slot was after each tick until then."""

    turn: str
    reason: str
    reply_tokens: tuple[int, ...]
    held_sha256: str
    schedule_sha256: str


@dataclass(frozen=True, slots=True)
class _Live:
    order: TurnOrder
    cancelled_at: int | None


class Load:
    """Drives a lane; with `learning`, there is a lesson to walk in nearly every tick."""

    def __init__(self, lane: Lane, shape: Shape, *, learning: bool) -> None:
        self.lane = lane
        self.ticks = 0
        self.tokens = 0
        self.served: list[Served] = []
        self.outcomes: Counter[str] = Counter()
        self._shape = shape
        self._learning = learning
        self._slots = lane.engine.slots
        self._end_tokens = frozenset(range(0, shape.vocabulary, END_TOKEN_EVERY))
        self._live: dict[int, _Live] = {}
        self._turns: Counter[int] = Counter()
        self._lessons: dict[str, int | None] = {}
        self._ordered = 0
        self._walking: str | None = None
        self._schedule = hashlib.sha256()

    @property
    def learned(self) -> int:
        """How many lessons took their step."""
        return self.outcomes["learned"]

    @property
    def cancelled(self) -> int:
        """How many lessons were cancelled, waiting or walking."""
        return self.outcomes["cancelled"]

    @property
    def refused(self) -> int:
        """How many lessons were refused."""
        return self.outcomes.total() - self.learned - self.cancelled

    def tick(self) -> None:
        """One serving step with a turn on every slot, and a segment of a lesson."""
        self._cancel_due()
        for slot in self._slots:
            if slot.index not in self._live:
                self._submit(slot)
        self._serve()

    def rest(self) -> None:
        """Serve what is live to its end, then learn what waits; empty the slots."""
        while self._live:
            self._cancel_due()
            self._serve()
        held = [self._held_sha256(slot) for slot in self._slots]
        while self.lane.learning:
            self._take(self.lane.tick())
        assert held == [self._held_sha256(slot) for slot in self._slots], "a lesson wrote to a slot"
        assert not self._lessons, f"lessons that did not end: {sorted(self._lessons)}"
        for slot in self._slots:
            self.lane.engine.cut(slot.index, tokens=0)

    def _cancel_due(self) -> None:
        """Cancel the turns and lessons whose tick has come."""
        for live in [live for live in self._live.values() if live.cancelled_at == self.ticks]:
            self.lane.cancel(live.order.id)
            self._take(self.lane.drain())
        for lesson in [lesson for lesson, tick in self._lessons.items() if tick == self.ticks]:
            self._cancel_lesson(lesson)

    def _serve(self) -> None:
        self._take(self.lane.tick())
        self._schedule.update(f"{[len(slot.tokens) for slot in self._slots]}".encode())
        self.ticks += 1

    def _submit(self, slot: Slot) -> None:
        self._turns[slot.index] += 1
        name = f"turn {self._turns[slot.index]} of slot {slot.index}"
        chance = random.Random(name)
        order = self._next_turn(name, slot, chance)
        lifetime = chance.choice([None] * 5 + [chance.randint(1, self._shape.reply)])
        if slot.shared_with(order.tokens, order.stable) < slot.pinned_tokens:
            assert self._walking is not None
            self._cancel_lesson(self._walking)
        self._live[slot.index] = _Live(order, None if lifetime is None else self.ticks + lifetime)
        self.lane.submit(order)
        self._order_lesson(order)

    def _next_turn(self, name: str, slot: Slot, chance: random.Random) -> TurnOrder:
        """A turn that goes on from what the slot holds, from a part of it, or from nothing."""
        shape, held = self._shape, len(slot.tokens)
        kept = chance.choice([held] * 6 + [chance.randint(0, held)] * 2 + [0])
        if kept + shape.prompt + shape.reply > shape.context:
            kept = chance.randint(0, kept // 2)
        return TurnOrder(
            id=name,
            tokens=(*slot.tokens[:kept], *self._new_tokens(chance)),
            max_tokens=chance.randint(1, shape.reply),
            sampling=Sampling(temperature=chance.choice([0.0, 0.8]), seed=chance.randrange(1000)),
            end_tokens=self._end_tokens,
            stable=shape.stables[slot.index],
            slot=slot.index,
        )

    def _new_tokens(self, chance: random.Random) -> list[int]:
        return [chance.randrange(self._shape.vocabulary) for _ in range(chance.randint(1, self._shape.prompt))]

    def _order_lesson(self, turn: TurnOrder, reply: tuple[int, ...] = ()) -> None:
        """A lesson on the turn, or on its reply if it has one."""
        if not self._learning or len(self._lessons) >= MOST_WAITING:
            return
        assert turn.slot is not None
        self._ordered += 1
        name, shadow = f"lesson {self._ordered}", self._shape.shadows[turn.slot]
        chance = random.Random(name)
        if reply:
            lesson = reply_lesson(turn, reply, name=name, shadow=shadow)
        else:
            context = self._shape.context
            lesson = lesson_on(turn, name=name, shadow=shadow, chance=chance, context=context)
        self._lessons[name] = chance.choice([None] * 3 + [self.ticks + chance.randint(1, self._shape.reply)])
        self.lane.learn(lesson)

    def _cancel_lesson(self, lesson: str) -> None:
        self.lane.cancel_lessons([lesson])
        self._take(self.lane.drain())

    def _take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TokenServed():
                    self.tokens += 1
                case TurnEnded():
                    self._turn_ended(event)
                case LessonStarted():
                    self._walking = event.lesson
                case LessonEnded():
                    self._lesson_ended(event)

    def _turn_ended(self, ended: TurnEnded) -> None:
        slot = next(index for index, live in self._live.items() if live.order.id == ended.turn)
        order = self._live.pop(slot).order
        assert ended.reason != "failed", ended
        held = self._held_sha256(self._slots[slot])
        schedule = self._schedule.hexdigest()
        self.served.append(Served(ended.turn, ended.reason, ended.reply_tokens, held, schedule))
        if ended.reply_tokens:
            self._order_lesson(order, ended.reply_tokens)

    def _lesson_ended(self, ended: LessonEnded) -> None:
        del self._lessons[ended.lesson]
        if self._walking == ended.lesson:
            self._walking = None
        if isinstance(ended.outcome, LessonLearned):
            self.outcomes["learned"] += 1
            return
        assert ended.outcome.code in REFUSALS, ended.outcome
        self.outcomes[ended.outcome.code] += 1

    def _held_sha256(self, slot: Slot) -> str:
        """The hash of all that the slot holds: token ids, keys and values, kept states, recurrent states."""
        engine, rows = self.lane.engine, len(slot.tokens)
        digest = hashlib.sha256(f"{slot.tokens} {engine.store.sha256(slot=slot.index, stop=rows)}".encode())
        states = engine._states[slot.index, :rows].cpu()
        digest.update(states.view(torch.uint8).numpy().tobytes())
        if engine.recurrent is not None:
            digest.update(engine.recurrent.sha256(slot.index).encode())
        return digest.hexdigest()
