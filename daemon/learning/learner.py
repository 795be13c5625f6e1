"""What the lane says of lessons, made into records: one event at a time, in the order they happened.

- A step is committed with its snapshot already on disk. If that fails, the lane's shadow is put back to what
  the ledger says; the lesson, still riding there, is taken up again at the next start: it was not trained.
- A lesson that ended without a decision, because its turn was cancelled or because its turn was served before a
  restart and its prefix not again since, goes back to waiting.
- What is learned of an agent that belongs to this lane no more is not kept; her lessons wait where she belongs.
- A rollback first ends what walks and records what was learned, then moves back.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from daemon.http.metrics import Metrics
from daemon.learning.adapters import AgentAdapters
from daemon.learning.fates import learned_facts, refused_facts
from daemon.learning.rides import Pending, Rides
from daemon.learning.snapshots import Snapshots
from engine.errors import LessonRefused
from engine.orders import LessonEnded, LessonStarted
from engine.shadow import OptimizerSettings
from engine.walk import LessonLearned
from signals.refusals import Refusal, RefusalCode
from store import adapters as stored_adapters
from store import lessons, steps
from store.errors import Elsewhere
from store.records import Adapters, Step
from store.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Lost:
    """An agent belongs to this lane no more."""

    agent: str


class Learner:
    """Records what becomes of lessons."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        snapshots: Snapshots,
        metrics: Metrics,
        *,
        optimizer: OptimizerSettings,
        made_by: Mapping[str, Any],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._rides = rides
        self._adapters = adapters
        self._snapshots = snapshots
        self._optimizer = optimizer
        self._made_by = made_by
        self._events: asyncio.Queue[LessonStarted | LessonEnded | _Lost | asyncio.Event] = asyncio.Queue()
        self._rolling_back: set[str] = set()
        self._still: set[str] = set()
        self._over = False

    def on_lesson(self, event: LessonStarted | LessonEnded) -> None:
        """Take an event of the lane's, to be handled in its turn."""
        self._metrics.heard(event)
        self._events.put_nowait(event)

    def lets_ride(self, agent: str) -> bool:
        """May lessons of the agent's ride now? Not while she is rolled back, or kept still."""
        return agent not in self._rolling_back and agent not in self._still

    @asynccontextmanager
    async def still(self, agents: Collection[str]) -> AsyncIterator[None]:
        """For as long as the block runs those agents learn nothing: what walks ends, and waits again."""
        held = {agent for agent in agents if agent not in self._still}
        self._still |= held
        try:
            riding = [pending.id for agent in held for pending in self._rides.riding(agent)]
            await self._adapters.cancel_lessons(riding)
            await self.settled()
            yield
        finally:
            self._still -= held

    async def follow(self) -> None:
        """Handle the lane's events for as long as the service runs."""
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, asyncio.Event):
                    event.set()
                elif isinstance(event, _Lost):
                    await self._give_up(event.agent)
                else:
                    await self._handle_or_take_back(event)
                    self._metrics.backlog.leave(event)
        finally:
            self._over = True
            while not self._events.empty():
                event = self._events.get_nowait()
                if isinstance(event, asyncio.Event):
                    event.set()

    async def settled(self) -> None:
        """Return once every event the lane has told so far is handled."""
        if not self._over:
            reached = asyncio.Event()
            self._events.put_nowait(reached)
            await reached.wait()

    async def give_up(self, agent: str) -> None:
        """The agent belongs to this lane no more: her lessons end here undecided, and wait where she belongs."""
        self._events.put_nowait(_Lost(agent))
        await self.settled()

    async def rollback(self, agent: str, version: int) -> Adapters:
        """Serve a version again. The agent's lessons on their way are ended; what was learned is recorded first.

        Raises:
            Unknown: there is no such agent or version; nothing was ended.
        """
        await self._adapters.check_version(agent, version)
        self._rolling_back.add(agent)
        try:
            await self._adapters.cancel_lessons([pending.id for pending in self._rides.riding(agent)])
            await self.settled()
            return await self._adapters.rollback(agent, version)
        finally:
            self._rolling_back.discard(agent)

    async def refuse_waiting(self, pending: Pending, refusal: Refusal) -> None:
        """Refuse a lesson that rides nothing. It is out of everyone's reach before this first waits."""
        await self.refuse_all_waiting([(pending, refusal)])

    async def refuse_all_waiting(self, refused: Sequence[tuple[Pending, Refusal]]) -> None:
        """Refuse lessons that ride nothing, in one transaction. They are out of reach before this first waits."""
        for pending, _ in refused:
            self._rides.drop(pending.id)
        await self._store.write(_refuse_lessons, refused)
        for _, refusal in refused:
            self._metrics.lesson("refused", refusal.code)

    async def _handle_or_take_back(self, event: LessonStarted | LessonEnded) -> None:
        if event.lesson not in self._rides:
            return  # taken back: what the lane still says of it changes nothing
        pending = self._rides[event.lesson]
        try:
            await self._handle(pending, event)
        except Elsewhere as error:
            logger.warning("lesson %s is not recorded: %s", event.lesson, error)
            await self._give_up(pending.agent)
        except Exception:  # the border of one lesson: logged, and its effect undone
            logger.exception("lesson %s could not be recorded; its step is taken back", event.lesson)
            await self._take_back(pending)

    async def _handle(self, pending: Pending, event: LessonStarted | LessonEnded) -> None:
        match event:
            case LessonStarted():
                await self._store.write(lessons.begin_ride, pending.id, turn=event.turn)
            case LessonEnded(outcome=LessonLearned() as learned):
                await self._commit(pending, event, learned)
            case LessonEnded(outcome=LessonRefused() as refused):
                await self._refused(pending, refused)

    async def _commit(self, pending: Pending, event: LessonEnded, learned: LessonLearned) -> None:
        assert event.snapshot is not None, f"lesson {pending.id} was learned without a snapshot"
        assert event.prefix is not None, f"lesson {pending.id} was learned on nobody knows what"
        after = learned.after
        former = (await self._store.read(stored_adapters.adapters_of, pending.agent)).shadow.snapshot
        file = await asyncio.to_thread(self._snapshots.write, event.snapshot)
        step = Step(
            id=f"step-{uuid.uuid4().hex}",
            lesson=pending.id,
            loss_before=learned.loss,
            row_losses_before=learned.row_losses,
            loss_after=None if after is None else after.loss,
            row_losses_after=None if after is None else after.row_losses,
            kl_served=learned.kl_served,
            gradient_norm=learned.step.gradient_norm,
            optimizer=self._optimizer.name,
            hyperparameters=self._optimizer.hyperparameters() | {"lr": learned.step.lr},
            lr=learned.step.lr,
            chunk_rows=learned.chunk_rows,
            shadow_before=learned.step.sha_before,
            shadow_after=learned.step.sha_after,
            snapshot=file,
            learning_ms=learned.learning_seconds * 1000,
            waited_ms=event.held_up_seconds * 1000,
            peak_bytes=learned.peak_bytes,
            served=event.prefix.as_json(),
            made_by=self._made_by,
        )
        kept = await self._store.write(steps.commit_step, step)
        self._metrics.learned(learned)
        self._rides.end(pending.fate("learned", **learned_facts(step, kept.number)))
        await self._drop_snapshot(pending.agent, former)

    async def _refused(self, pending: Pending, refused: LessonRefused) -> None:
        rolled_back = refused.code == "cancelled" and pending.agent in self._rolling_back
        cancelled = refused.code == "cancelled" and not rolled_back
        if cancelled or (refused.code == "unserved_prefix" and not pending.served_here):
            await self._store.write(lessons.end_ride, pending.id)
            self._metrics.lesson("waiting")
            self._rides.end(pending.fate("waiting"))
            return
        refusal = Refusal(code=RefusalCode(refused.code), message=refused.message, position=refused.position)
        if rolled_back:
            message = f"The lesson was on its way when {pending.agent} was rolled back; send the signal again."
            refusal = Refusal(code=RefusalCode.PENDING_ROLLBACK, message=message)
        await self._record_refusal(pending, refusal)
        self._rides.end(pending.fate("refused", **refused_facts(refusal)))

    async def _record_refusal(self, pending: Pending, refusal: Refusal) -> None:
        await self._store.write(_refuse_lessons, [(pending, refusal)])
        self._metrics.lesson("refused", refusal.code)

    async def _take_back(self, pending: Pending) -> None:
        """After an event that could not be recorded: the shadow as the ledger has it, the lesson out of hand."""
        message = (
            "The lesson could not be recorded and was taken back; the service's log says why. "
            "It is taken up again when the service starts."
        )
        walking = [pending.id, *(other.id for other in self._rides.riding(pending.agent))]
        try:
            await self._adapters.restore_head(pending.agent, cancelling=walking)
        except Exception:  # the next commit will not follow the head, and comes here again
            logger.exception("the shadow of %s could not be put back", pending.agent)
        self._metrics.lesson("failed")
        taken_back = Refusal(code=RefusalCode.CANCELLED, message=message)
        self._rides.end(pending.fate("refused", **refused_facts(taken_back)))

    async def _give_up(self, agent: str) -> None:
        """Nothing of the agent's walks or waits here any more; her shadow is read anew if she is taken again."""
        await self._adapters.cancel_lessons([pending.id for pending in self._rides.riding(agent)])
        await self._adapters.forget(agent)
        for pending in self._rides.of(agent):
            if pending.riding:
                self._metrics.lesson("waiting")
                self._rides.end(pending.fate("waiting"))
            self._rides.drop(pending.id)

    async def _drop_snapshot(self, agent: str, name: str) -> None:
        """Delete the head's former snapshot, unless a version is made of it. A start sweeps what is missed."""
        try:
            kept = await self._store.read(stored_adapters.adapters_of, agent)
            if name not in {kept.shadow.snapshot, *(version.snapshot for version in kept.versions)}:
                await asyncio.to_thread(self._snapshots.delete, name)
        except Exception:  # the step is committed, whatever happens to an old file
            logger.exception("the snapshot %s could not be deleted", name)


def _refuse_lessons(session: Session, refused: Sequence[tuple[Pending, Refusal]]) -> None:
    for pending, why in refused:
        lessons.refuse_lesson(session, pending.id, code=why.code, message=why.message, position=why.position)
