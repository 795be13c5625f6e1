"""What rides when: an agent's waiting lessons board her next turn, or run in the gap when none comes.

- Nothing that goes wrong here fails a turn: it is served without riders, and the log says why.
- While an agent is rolled back, or something of hers is forgotten, none of her lessons board; once the service
  stops, none of anyone's.
- A lesson that has waited too long ends as expired.
"""

import asyncio
import logging
from collections.abc import Callable

from daemon.learning.adapters import AgentAdapters
from daemon.learning.learner import Learner
from daemon.learning.rides import Pending, Rides
from daemon.serving.lane_thread import LaneThread
from engine.lane import Lane
from engine.orders import LessonOrder
from signals.refusals import Refusal, RefusalCode
from store.clock import now_us
from store.errors import StoreError

logger = logging.getLogger(__name__)


class Boarding:
    """Decides which lessons ride."""

    def __init__(
        self,
        lane: LaneThread,
        rides: Rides,
        adapters: AgentAdapters,
        learner: Learner,
        *,
        idle_seconds: float,
        ttl_seconds: float,
    ) -> None:
        self._lane = lane
        self._rides = rides
        self._adapters = adapters
        self._learner = learner
        self._idle_seconds = idle_seconds
        self._ttl_seconds = ttl_seconds
        self._stirred = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """From now on no lesson rides; those that do stop at their next segment, and wait for another start."""
        self._closed = True
        riding = [pending.id for pending in self._rides.riding()]
        self._lane.post(lambda lane: lane.cancel_lessons(riding))

    def stir(self) -> None:
        """Something happened: the gap, if there was one, begins anew."""
        self._stirred.set()

    async def board(self, *, agent: str, context: str, turn: str, own: str | None = None) -> list[LessonOrder]:
        """The lessons that ride an agent's turn, in order. They are riding from now on.

        `own` is the signal that this very turn came with; its lesson rides last.
        """
        self.stir()
        try:
            await self._expire()
            if not self._for_turn(agent, context, own):
                return []
            shadow = await self._adapters.shadow(agent)
        except Exception:  # learning's border: the turn is served without it
            logger.exception("no lesson of %s can ride", agent)
            return []
        riders = [rider for rider in self._for_turn(agent, context, own) if self._may_ride(rider)]
        self._rides.board(turn, riders)
        return [rider.order(shadow, rides=turn) for rider in riders]

    async def start(self, signal: str, *, turn: str | None = None) -> None:
        """Have the lane learn now what a signal asks for, on the turn's slot if it is held; else it waits on."""
        pending = self._rides.made_by(signal)
        if pending is not None:
            await self._start(pending, turn=turn)

    async def fill_gaps(self) -> None:
        """Run waiting lessons whenever the lane has been idle for a while, for as long as the service runs."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            try:
                await asyncio.wait_for(self._stirred.wait(), timeout=self._idle_seconds)
            except TimeoutError:
                if self._lane.live_turns == 0:
                    await self._run_waiting()

    async def _run_waiting(self) -> None:
        try:
            await self._expire()
        except StoreError:  # it is tried again: what waited too long goes on waiting
            logger.exception("lessons that waited too long could not be ended")
        for pending in self._rides.waiting():
            await self._start(pending)

    async def _start(self, pending: Pending, *, turn: str | None = None) -> None:
        try:
            shadow = await self._adapters.shadow(pending.agent)
        except Exception:  # one agent's border: the others' lessons go on
            logger.exception("the shadow of %s cannot be opened", pending.agent)
            return
        if self._may_ride(pending):
            pending.riding = True
            self._lane.post(_learn(pending.order(shadow, rides=turn)))

    def _for_turn(self, agent: str, context: str, own: str | None) -> list[Pending]:
        mine = None if own is None else self._rides.made_by(own)
        return self._rides.waiting(agent=agent, context=context) + ([] if mine is None else [mine])

    def _may_ride(self, pending: Pending) -> bool:
        """Does the lesson still wait, may its agent's ride, and is the service not stopping?"""
        waits = pending.id in self._rides and pending.may_ride
        return waits and not self._closed and self._learner.lets_ride(pending.agent)

    async def _expire(self) -> None:
        oldest = now_us() - int(self._ttl_seconds * 1_000_000)
        for pending in [pending for pending in self._rides.unridden() if pending.planned_at_us < oldest]:
            wanted = "a verdict of its turn" if pending.held else "its prefix to be served"
            message = (
                f"The lesson waited {self._ttl_seconds:.0f} seconds for {wanted}. "
                "Send the signal again when the conversation goes on, or raise --lesson-ttl-seconds."
            )
            if pending.id in self._rides and not (pending.riding or pending.changing):
                await self._learner.refuse_waiting(pending, Refusal(code=RefusalCode.EXPIRED, message=message))


def _learn(order: LessonOrder) -> Callable[[Lane], None]:
    return lambda lane: lane.learn(order)
