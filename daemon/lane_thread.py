"""The lane's own thread, and the bridge from the event loop to it.

- One thread owns the lane and everything torch; the event loop only puts calls on a queue and is told events.
- Calls run between two ticks, in order. Events reach the loop in the order they happened.
- If a tick raises, the lane is in no state to go on: every turn ends failed, every later call is refused, and
  the owner is told, once.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from daemon.errors import LaneStopped
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
_Call = Callable[[Lane], None]


class TurnHandle:
    """One turn as the event loop sees it: its events, in order, up to its end."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.ended: TurnEnded | None = None
        self._events: asyncio.Queue[TurnStarted | TokenServed | TurnEnded] = asyncio.Queue()

    def put(self, event: TurnStarted | TokenServed | TurnEnded) -> None:
        """Take the next event."""
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
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._turns: dict[str, TurnHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
        self._stopped = False

    @property
    def live_turns(self) -> int:
        """How many turns have not ended."""
        return len(self._turns)

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
            raise LaneStopped("the lane is stopped")
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(lambda lane: self._answer(future, function, lane))
        return await future

    async def submit(self, order: TurnOrder, lessons: Sequence[LessonOrder] = ()) -> TurnHandle:
        """Queue a turn, and the lessons that ride it.

        Raises:
            TurnRejected: the engine cannot serve it as asked.
        """
        handle = self._turns[order.id] = TurnHandle(order.id)
        try:
            await self.call(lambda lane: lane.submit(order, lessons))
        except BaseException:
            del self._turns[order.id]
            raise
        return handle

    def post(self, call: Callable[[Lane], None]) -> None:
        """Have a function run on the lane's thread, between two ticks, without waiting for it."""
        if not self._stopped:
            self._calls.put(call)

    def cancel(self, turn: str) -> None:
        """End a turn, if it has not ended, without waiting for it."""
        if turn in self._turns:
            self.post(lambda lane: lane.cancel(turn))

    async def close(self) -> None:
        """Stop after the step in hand; idempotent."""
        self._calls.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._stop(LaneStopped("the lane was closed"))

    def _answer(self, future: "asyncio.Future[T]", function: Callable[[Lane], T], lane: Lane) -> None:
        try:
            result = function(lane)
        except Exception as error:  # handed to whoever called
            self._post(_settle, future, error, None)
        else:
            self._post(_settle, future, None, result)

    def _run(self) -> None:
        try:
            lane = self._load()
        except BaseException as error:  # handed to whoever started the thread
            self._post(_settle, self._loaded, error, None)
            return
        self._post(_settle, self._loaded, None, None)
        try:
            while self._take_calls(lane):
                if events := lane.tick():
                    self._post(self._publish, events)
        except BaseException as error:
            logger.exception("the lane failed")
            self._post(self._stop, error)
            self._post(self._on_failure, error)
        finally:
            lane.engine.close()

    def _take_calls(self, lane: Lane) -> bool:
        """Run what is on the queue, waiting for it when there is nothing else to do; False means stop."""
        while not (self._calls.empty() and (lane.serving or lane.learning)):
            call = self._calls.get()
            if call is None:
                return False
            call(lane)
        return True

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, LessonStarted | LessonEnded):
                self._on_lesson(event)
            elif (handle := self._turns.get(event.turn)) is not None:
                handle.put(event)
                if isinstance(event, TurnEnded):
                    del self._turns[event.turn]

    def _stop(self, error: BaseException) -> None:
        self._stopped = True
        for turn, handle in list(self._turns.items()):
            handle.put(TurnEnded(turn, "failed", error=str(error)))
        self._turns.clear()

    def _post(self, function: Callable[..., Any], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _settle(future: "asyncio.Future[Any]", error: BaseException | None, result: Any) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
