"""The lane's own thread, and the bridge from the event loop to it.

- One thread owns the lane and everything torch; the event loop only puts jobs on a queue and is told events.
- Jobs run between two ticks, in order. Events reach the loop in the order they happened, and those that a job
  brought about before its answer does.
- If a tick raises, the lane is in no state to go on: every turn ends failed, every job is answered with
  `LaneStopped`, and the owner is told, once.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from daemon.http.errors import LaneStopped
from daemon.serving.serving_time import ServingTime
from engine.lane import Lane
from engine.orders import (
    Event,
    LessonEnded,
    LessonOrder,
    LessonStarted,
    TokenServed,
    TurnEnded,
    TurnOrder,
    TurnStarted,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to do with the lane; whoever asked waits for the future, if there is one."""

    function: Callable[[Lane], Any]
    future: "asyncio.Future[Any] | None" = None


class TurnHandle:
    """One turn as the event loop sees it: its events, in order, up to its end."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.slot: int | None = None
        self.ended: TurnEnded | None = None
        self._events: asyncio.Queue[TurnStarted | TokenServed | TurnEnded] = asyncio.Queue()

    def put(self, event: TurnStarted | TokenServed | TurnEnded) -> None:
        """Take the next event."""
        if isinstance(event, TurnStarted):
            self.slot = event.slot
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[TurnStarted | TokenServed | TurnEnded]:
        """Every event of the turn; the last is its end."""
        while self.ended is None:
            event = await self._events.get()
            if isinstance(event, TurnEnded):
                self.ended = event
            yield event


class LaneThread:
    """Runs a lane; built from a function that loads it, called on the lane's own thread."""

    def __init__(
        self,
        load: Callable[[], Lane],
        *,
        on_lesson: Callable[[LessonStarted | LessonEnded], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._load = load
        self._on_lesson = on_lesson
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._asked: set[asyncio.Future[Any]] = set()
        self._turns: dict[str, TurnHandle] = {}
        self._walking: dict[str, int] = {}
        self.serving_time = ServingTime()
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
        self._stopped = False

    @property
    def live_turns(self) -> int:
        """How many turns have not ended."""
        return len(self._turns)

    def has(self, turn: str) -> bool:
        """Is that one of the turns that have not ended?"""
        return turn in self._turns

    @property
    def queued_turns(self) -> int:
        """How many turns wait for a slot."""
        return sum(handle.slot is None for handle in self._turns.values())

    def turns_by_slot(self) -> dict[int, str]:
        """The turn that each slot is busy with, as far as the events have come."""
        return {handle.slot: turn for turn, handle in self._turns.items() if handle.slot is not None}

    def lessons_by_slot(self) -> dict[int, str]:
        """The lesson that walks on a slot, as far as the events have come."""
        return {slot: lesson for lesson, slot in self._walking.items()}

    @property
    def stopped(self) -> bool:
        """Is the lane closed, or has it failed?"""
        return self._stopped

    async def start(self) -> None:
        """Load the lane; returns when it serves, raises what loading raised."""
        self._thread.start()
        await self._loaded

    async def call(self, function: Callable[[Lane], T]) -> T:
        """Run a function on the lane's thread, between two ticks.

        Raises:
            LaneStopped: the lane is closed or has failed.
        """
        if self._stopped:
            raise LaneStopped("the lane is stopped; start the service again")
        future: asyncio.Future[T] = self._loop.create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._jobs.put(_Job(function, future))
        return await future

    def post(self, function: Callable[[Lane], None]) -> None:
        """Have a function run on the lane's thread, between two ticks, without waiting for it."""
        if not self._stopped:
            self._jobs.put(_Job(function))

    async def submit(self, order: TurnOrder, lessons: Sequence[LessonOrder] = ()) -> TurnHandle:
        """Queue a turn, and the lessons that ride it. If this is cancelled, so is the turn.

        Raises:
            TurnRejected: the engine cannot serve it as asked.
        """
        handle = self._turns[order.id] = TurnHandle(order.id)
        self.serving_time.live(len(self._turns))
        try:
            await self.call(lambda lane: lane.submit(order, lessons))
        except BaseException:
            self.cancel(order.id)
            self._turns.pop(order.id, None)
            self.serving_time.live(len(self._turns))
            raise
        return handle

    def cancel(self, turn: str) -> None:
        """End a turn, if it has not ended, without waiting for it."""
        if turn in self._turns:
            self.post(lambda lane: lane.cancel(turn))

    def let_go(self, turn: str) -> None:
        """Hold a turn's slot no longer, without waiting for it."""
        self.post(lambda lane: lane.let_go(turn))

    async def close(self) -> None:
        """Stop after the step in hand; idempotent."""
        self._jobs.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._stop("the lane was closed")

    def _run(self) -> None:
        try:
            lane = self._load()
        except BaseException as error:  # handed to whoever started the thread
            self._post(_settle, self._loaded, error, None)
            return
        self._post(_settle, self._loaded, None, None)
        try:
            while self._do_jobs(lane):
                self._tell(lane.tick())
        except BaseException as error:
            logger.exception("the lane failed")
            self._post(self._stop, f"the lane failed: {error}")
            self._post(self._on_failure, error)
        finally:
            lane.engine.close()

    def _do_jobs(self, lane: Lane) -> bool:
        """Do what is on the queue, waiting for it when there is nothing else to do; False means stop."""
        while not (self._jobs.empty() and lane.has_work):
            job = self._jobs.get()
            if job is None:
                return False
            self._do(job, lane)
        return True

    def _do(self, job: _Job, lane: Lane) -> None:
        error, result = None, None
        try:
            result = job.function(lane)
        except Exception as raised:  # handed to whoever asked
            error = raised
        self._tell(lane.drain())
        if job.future is not None:
            self._post(_settle, job.future, error, result)
        elif error is not None:
            logger.error("a job on the lane failed", exc_info=error)

    def _tell(self, events: list[Event]) -> None:
        if events:
            self._post(self._publish, events)

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, LessonStarted | LessonEnded):
                self._note(event)
                self._on_lesson(event)
            elif (handle := self._turns.get(event.turn)) is not None:
                handle.put(event)
                if isinstance(event, TurnEnded):
                    del self._turns[event.turn]
                    self.serving_time.live(len(self._turns))

    def _note(self, event: LessonStarted | LessonEnded) -> None:
        if isinstance(event, LessonStarted):
            self._walking[event.lesson] = event.slot
        else:
            self._walking.pop(event.lesson, None)

    def _stop(self, why: str) -> None:
        self._stopped = True
        for turn, handle in self._turns.items():
            handle.put(TurnEnded(turn, "failed", error=why))
        self._turns.clear()
        self._walking.clear()
        self.serving_time.live(0)
        for future in list(self._asked):
            _settle(future, LaneStopped(why), None)

    def _post(self, function: Callable[..., Any], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _settle(future: "asyncio.Future[Any]", error: BaseException | None, result: Any) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
