"""From planned lessons to committed steps: what rides when, and what is written when it ends.

- A lesson waits for its agent's next turn in its context; if the lane is idle for a while it runs in the gap.
- What the lane says of lessons is handled one event at a time, in order, so that a step is committed before
  anything that came after it.
- A step is committed with its snapshot already on disk. If that fails, the lane's shadow is put back to what
  the ledger says; the lesson, still riding there, is taken up again at the next start: it was not trained.
- A lesson whose turn was served before a restart waits for its prefix to be served again, instead of being
  refused because the new process has not served it yet.
"""

import asyncio
import logging
import uuid
from typing import Any

from daemon.adapters import AgentAdapters
from daemon.lane_thread import LaneThread
from daemon.rides import Pending, Rides
from daemon.snapshots import Snapshots
from engine.errors import LessonRefused
from engine.orders import LessonEnded, LessonOrder, LessonStarted
from engine.shadow import OptimizerSettings
from engine.walk import LessonLearned
from signals.refusals import RefusalCode
from store import adapters as stored_adapters
from store import lessons, steps
from store.clock import now_us
from store.errors import StoreError
from store.records import Adapters, Step
from store.store import Store

logger = logging.getLogger(__name__)


class Learner:
    """Decides which lessons ride, and records what became of them."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        snapshots: Snapshots,
        *,
        optimizer: OptimizerSettings,
        idle_seconds: float,
        ttl_seconds: float,
    ) -> None:
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._snapshots = snapshots
        self._optimizer = optimizer
        self._idle_seconds = idle_seconds
        self._ttl_seconds = ttl_seconds
        self._events: asyncio.Queue[LessonStarted | LessonEnded | asyncio.Future[None]] = asyncio.Queue()
        self._stirred = asyncio.Event()
        self._rolling_back: set[str] = set()

    def on_lesson(self, event: LessonStarted | LessonEnded) -> None:
        """Take an event of the lane's, to be handled in its turn."""
        self._events.put_nowait(event)

    def stir(self) -> None:
        """Something happened: the gap, if there was one, begins anew."""
        self._stirred.set()

    async def board(self, *, agent: str, context: str, turn: str) -> list[LessonOrder]:
        """The lessons that ride an agent's turn, in order."""
        self.stir()
        await self._expire()
        riders = self._rides.waiting(agent=agent, context=context)
        if not riders:
            return []
        shadow = await self._adapters.shadow(agent)
        riders = [rider for rider in riders if not rider.riding and rider.id in self._rides]
        self._rides.board(turn, riders)
        return [rider.order(shadow, rides=turn) for rider in riders]

    async def follow(self) -> None:
        """Handle the lane's events for as long as the service runs."""
        while True:
            event = await self._events.get()
            if isinstance(event, asyncio.Future):
                event.set_result(None)
                continue
            try:
                await self._handle(event)
            except (StoreError, OSError):
                logger.exception("lesson %s could not be recorded; its step is taken back", event.lesson)
                await self._take_back(self._rides[event.lesson])

    async def fill_gaps(self, lane: LaneThread) -> None:
        """Run waiting lessons whenever the lane has been idle for a while."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            try:
                await asyncio.wait_for(self._stirred.wait(), timeout=self._idle_seconds)
            except TimeoutError:
                if lane.live_turns == 0:
                    await self._run_in_gap(lane)

    async def rollback(self, agent: str, version: int, lane: LaneThread) -> Adapters:
        """Serve a version again: the agent's lessons that walk are ended, what was learned is recorded first."""
        self._rolling_back.add(agent)
        try:
            riding = [pending.id for pending in self._rides.riding(agent)]
            await lane.call(lambda own: own.cancel_lessons(riding))
            await self.settled()
            return await self._adapters.rollback(agent, version)
        finally:
            self._rolling_back.discard(agent)

    async def settled(self) -> None:
        """Return once every event the lane has told so far is handled."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events.put_nowait(reached)
        await reached

    async def _run_in_gap(self, lane: LaneThread) -> None:
        await self._expire()
        for pending in self._rides.waiting():
            shadow = await self._adapters.shadow(pending.agent)
            if pending.riding or pending.id not in self._rides:
                continue
            pending.riding = True
            order = pending.order(shadow, rides=None)
            await lane.call(lambda own, order=order: own.learn(order))  # type: ignore[misc]

    async def _expire(self) -> None:
        oldest = now_us() - int(self._ttl_seconds * 1_000_000)
        for pending in self._rides.waiting():
            if pending.planned_at_us < oldest:
                message = (
                    f"The lesson waited {self._ttl_seconds:.0f} seconds for its prefix to be served. "
                    "Send the signal again when the conversation goes on, or raise --lesson-ttl-seconds."
                )
                await self._refuse(pending, RefusalCode.EXPIRED, message, position=None)

    async def _handle(self, event: LessonStarted | LessonEnded) -> None:
        pending = self._rides[event.lesson]
        match event:
            case LessonStarted():
                await self._store.write(lessons.begin_ride, pending.id, turn=event.turn)
            case LessonEnded(outcome=LessonLearned() as learned):
                await self._commit(pending, event, learned)
            case LessonEnded(outcome=LessonRefused() as refused):
                await self._refused(pending, refused)
        self.stir()

    async def _commit(self, pending: Pending, event: LessonEnded, learned: LessonLearned) -> None:
        assert event.snapshot is not None, f"lesson {pending.id} was learned without a snapshot"
        before = (await self._store.read(stored_adapters.adapters_of, pending.agent)).shadow.snapshot
        file = await asyncio.to_thread(self._snapshots.write, event.snapshot)
        step = Step(
            id=f"step-{uuid.uuid4().hex}",
            lesson=pending.id,
            loss_before=learned.loss,
            kl_served=learned.kl_served,
            gradient_norm=learned.step.gradient_norm,
            optimizer=self._optimizer.name,
            hyperparameters=self._optimizer.hyperparameters(),
            lr=self._optimizer.lr,
            chunk_rows=len(pending.tokens),
            shadow_before=learned.step.sha_before,
            shadow_after=learned.step.sha_after,
            snapshot=file,
            learning_ms=learned.learning_seconds * 1000,
            waited_ms=event.held_up_seconds * 1000,
            peak_bytes=learned.peak_bytes,
        )
        kept = await self._store.write(steps.commit_step, step)
        self._rides.end(pending.fate("learned", **_facts(step, kept.number)))
        await self._drop_snapshot(pending.agent, before)

    async def _refused(self, pending: Pending, refused: LessonRefused) -> None:
        if refused.code == "unserved_prefix" and not pending.served_here:
            self._rides.end(pending.fate("waiting"))
            return
        code = RefusalCode(refused.code)
        message = refused.message
        if pending.agent in self._rolling_back and refused.code == "cancelled":
            code = RefusalCode.PENDING_ROLLBACK
            message = f"The lesson was on its way when {pending.agent} was rolled back; send the signal again."
        await self._refuse(pending, code, message, position=refused.position)

    async def _refuse(self, pending: Pending, code: RefusalCode, message: str, *, position: int | None) -> None:
        await self._store.write(lessons.refuse_lesson, pending.id, code=code, message=message, position=position)
        facts = {"code": str(code), "message": message, "position": position}
        self._rides.end(pending.fate("refused", **facts))

    async def _take_back(self, pending: Pending) -> None:
        """After a step that could not be recorded: the shadow as the ledger has it, the lesson out of hand."""
        await self._adapters.restore_head(pending.agent)
        message = (
            "The step could not be recorded and was taken back; the service's log says why. "
            "The lesson is taken up again when the service starts."
        )
        facts = {"code": str(RefusalCode.CANCELLED), "message": message, "position": None}
        self._rides.end(pending.fate("refused", **facts))

    async def _drop_snapshot(self, agent: str, name: str) -> None:
        """Delete the head's former snapshot, unless a version is made of it."""
        kept = await self._store.read(stored_adapters.adapters_of, agent)
        if name not in {kept.shadow.snapshot, *(version.snapshot for version in kept.versions)}:
            await asyncio.to_thread(self._snapshots.delete, name)


def _facts(step: Step, number: int) -> dict[str, Any]:
    return {
        "step": number,
        "loss": step.loss_before,
        "kl_served": step.kl_served,
        "gradient_norm": step.gradient_norm,
        "learning_ms": round(step.learning_ms, 1),
        "waited_ms": round(step.waited_ms, 1),
    }
