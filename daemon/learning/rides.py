"""Lessons in memory, from the plan to the end: which wait, which ride which turn, and what became of them.

- What is here is also in the store; after a restart it is built again from there.
- Corrections go before engrams and actions, and the longest waiting first.
- A lesson that was asked for by itself is claimed: nobody's turn takes it along before it is run for who asked.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from daemon.learning.fates import Fate, FateStatus
from daemon.serving.lane_thread import LaneThread
from engine.orders import LessonOrder
from signals.plans import LessonKind, LessonPlan

_ORDER: dict[LessonKind, int] = {"correction": 0, "engram": 1, "labels": 1, "action": 1}


@dataclass(slots=True)
class Pending:
    """A lesson that has not ended. `stable` is the lane's name of the set its turn was served with."""

    id: str
    agent: str
    context: str
    kind: LessonKind
    turn: str
    signals: tuple[str, ...]
    stable: str
    prefix: tuple[int, ...]
    tokens: tuple[int, ...]
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    planned_at_us: int
    served_here: bool
    """Was its turn served by this very process? If not, its prefix may yet be served again."""
    lr: float | None = None
    awaits: bool = False
    """Does it ride only once a verdict says that its turn passed?"""
    held: bool = False
    """Is there no such verdict yet?"""
    changing: int = 0
    """How many are changing it this moment, one within another?"""
    riding: bool = False
    ended: "asyncio.Event" = field(default_factory=asyncio.Event)
    last: Fate | None = None
    """What became of its last ride."""

    @property
    def may_ride(self) -> bool:
        """May it board now?"""
        return not (self.riding or self.held or self.changing)

    def fate(self, status: FateStatus, **facts: Any) -> "Fate":
        """What became of it."""
        return Fate(self.id, self.kind, self.signals, status, facts)

    def order(self, shadow: str, *, rides: str | None) -> LessonOrder:
        """What the lane is told."""
        return LessonOrder(
            id=self.id,
            shadow=shadow,
            stable=self.stable,
            prefix=self.prefix,
            tokens=self.tokens,
            targets=self.targets,
            weights=self.weights,
            rides=rides,
            lr=self.lr,
        )


class Rides:
    """The lessons that have not ended, and the fates of those that rode turns still open."""

    def __init__(self, lane: LaneThread) -> None:
        self._lane = lane
        self._pending: dict[str, Pending] = {}
        self._of: dict[str, dict[str, Pending]] = {}
        self._made: dict[str, str] = {}
        self._about: dict[str, dict[str, None]] = {}
        self._fates: dict[str, dict[str, Fate]] = {}
        self._rider_of: dict[str, str] = {}
        self._claimed: set[str] = set()

    def __getitem__(self, lesson: str) -> Pending:
        return self._pending[lesson]

    def __contains__(self, lesson: str) -> bool:
        return lesson in self._pending

    def add(self, pending: Pending) -> None:
        """A lesson waits, and the lane keeps its prefix as long as it can."""
        self._pending[pending.id] = self._of.setdefault(pending.agent, {})[pending.id] = pending
        self._made |= dict.fromkeys(pending.signals, pending.id)
        self._about.setdefault(pending.turn, {})[pending.id] = None
        self._lane.post(lambda lane: lane.keep(pending.id, stable=pending.stable, prefix=pending.prefix))

    def unridden(self, agent: str | None = None) -> list[Pending]:
        """The lessons that wait, those that may not ride yet included; of one agent, if one is named."""
        return [pending for pending in self.of(agent) if not pending.riding]

    def waiting(self, *, agent: str | None = None, context: str | None = None) -> list[Pending]:
        """The lessons that wait and may ride, in the order they should."""
        chosen = [
            pending
            for pending in self.of(agent)
            if pending.may_ride and context in {None, pending.context}
            if self._claimed.isdisjoint(pending.signals)
        ]
        return sorted(chosen, key=lambda pending: (_ORDER[pending.kind], pending.planned_at_us))

    def of(self, agent: str | None) -> list[Pending]:
        """The lessons that have not ended; of one agent, if one is named."""
        return [*(self._pending if agent is None else self._of.get(agent, {})).values()]

    def riding(self, agent: str | None = None) -> list[Pending]:
        """The lessons that are with the lane; of one agent, if one is named."""
        return [pending for pending in self.of(agent) if pending.riding]

    def made_by(self, signal: str) -> Pending | None:
        """The lesson that a signal makes, if it has not ended."""
        return None if signal not in self._made else self._pending[self._made[signal]]

    @contextmanager
    def claimed(self, signal: str) -> Iterator[None]:
        """For as long as the block runs, the lesson that a signal makes, or will make, waits for nobody else."""
        self._claimed.add(signal)
        try:
            yield
        finally:
            self._claimed.discard(signal)

    @contextmanager
    def changing(self, waiting: Sequence[Pending], *, over: Iterable[Pending]) -> Iterator[None]:
        """For as long as the block runs these ride nothing; those that are over are gone from its beginning on."""
        for pending in over:
            self.drop(pending.id)
        for pending in waiting:
            pending.changing += 1
        try:
            yield
        finally:
            for pending in waiting:
                pending.changing -= 1

    def is_riding(self, signal: str) -> bool:
        """Has the lane the lesson that a signal makes?"""
        made = self.made_by(signal)
        return made is not None and made.riding

    async def ended(self, signal: str, *, wait_seconds: float) -> Fate | None:
        """What becomes of the lesson that a signal makes and the lane has, waiting at most so long.

        None where it still walks then, and where the lane has none.
        """
        made = self.made_by(signal)
        if made is None or not made.riding:
            return None
        ended = made.ended
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await ended.wait()
        return made.last if ended.is_set() else None

    def about(self, turn: str) -> list[Pending]:
        """The lessons about a turn."""
        return [self._pending[lesson] for lesson in self._about.get(turn, ())]

    def board(self, turn: str, riders: list[Pending]) -> None:
        """These lessons ride that turn."""
        self._fates[turn] = {rider.id: rider.fate("riding") for rider in riders}
        for rider in riders:
            rider.riding = True
            self._rider_of[rider.id] = turn

    def end(self, fate: Fate) -> None:
        """A lesson has ended, or goes back to waiting; whoever waits for it is woken."""
        assert fate.lesson is not None, f"no lesson is in {fate}"
        turn = self._rider_of.pop(fate.lesson, None)
        if turn is not None and turn in self._fates:
            self._fates[turn][fate.lesson] = fate
        pending = self._pending[fate.lesson]
        pending.riding, pending.last = False, fate
        pending.ended.set()
        if fate.status == "waiting":
            pending.ended = asyncio.Event()
        else:
            self._forget(fate.lesson)

    def reshape(self, pending: Pending, plan: LessonPlan) -> None:
        """A lesson that waits has the rows of a plan from now on, and the signals that make it."""
        assert not pending.riding, f"lesson {pending.id} is riding"
        for signal in pending.signals:
            self._made.pop(signal, None)
        pending.signals, pending.prefix = plan.signals, plan.prefix
        pending.tokens, pending.targets, pending.weights = plan.tokens, plan.targets, plan.weights
        self.add(pending)

    def drop(self, lesson: str) -> None:
        """A lesson that waits is refused before it rode anything."""
        assert not self._pending[lesson].riding, f"lesson {lesson} is riding"
        self._forget(lesson)

    async def fates(self, turn: str, *, wait_seconds: float) -> list[Fate]:
        """What became of the lessons that rode a turn, waiting at most so long for those that still walk."""
        walking = [self._pending[lesson] for lesson, ridden in self._rider_of.items() if ridden == turn]
        if walking and wait_seconds > 0:
            tasks = [asyncio.create_task(pending.ended.wait()) for pending in walking]
            try:
                await asyncio.wait(tasks, timeout=wait_seconds)
            finally:
                for task in tasks:
                    task.cancel()
        return list(self._fates.get(turn, {}).values())

    def unboard(self, turn: str) -> None:
        """The turn came to nothing before the lane heard of it: its riders wait again."""
        for lesson in [lesson for lesson, ridden in self._rider_of.items() if ridden == turn]:
            del self._rider_of[lesson]
            self._pending[lesson].riding = False
        self.leave(turn)

    def leave(self, turn: str) -> None:
        """Nobody asks any more what became of the turn's riders."""
        self._fates.pop(turn, None)

    def _forget(self, lesson: str) -> None:
        pending = self._pending.pop(lesson)
        others = self._of[pending.agent]
        del others[lesson]
        if not others:
            del self._of[pending.agent]
        for signal in pending.signals:
            self._made.pop(signal, None)
        about = self._about[pending.turn]
        del about[lesson]
        if not about:
            del self._about[pending.turn]
        self._lane.post(lambda lane: lane.release(lesson))
