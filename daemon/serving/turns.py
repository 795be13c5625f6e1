"""Serving one turn: from a prompt to its reply, its row in the store, and the lessons that rode it.

- The stable set is fixed when the turn is submitted; it and the turn's id are known before the first token.
- A turn whose client goes away is cancelled, and its slot is free within a step.
- The turn's row is committed before its end is told, so that a signal about it never comes too early.
- A turn that comes with a reply to learn keeps its slot until that lesson has ended or nobody waits for it any
  more; one that comes with labels has its row from its beginning on.
- Of a private turn nothing that was said is kept, and no lesson rides it. In a context where one turn was
  private, every later one is.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from daemon.dialects.learn import LearnOptions
from daemon.http.errors import BadRequest, LaneStopped
from daemon.http.limits import TurnQueue
from daemon.http.metrics import Metrics
from daemon.http.speaker import Speaker
from daemon.learning.adapters import AgentAdapters
from daemon.learning.asked_lessons import AskedLessons
from daemon.learning.boarding import Boarding
from daemon.learning.fates import Fate, TurnLessons
from daemon.learning.policies import Policies
from daemon.learning.rides import Rides
from daemon.learning.stables import Stable
from daemon.serving.lane_thread import LaneThread
from daemon.serving.open_turn import OpenTurn, OwnLesson, Prompt, open_row
from daemon.serving.unbroken import Unbroken
from engine.constraint import Constraint
from engine.errors import TurnRejected
from engine.orders import LessonOrder, TurnOrder
from engine.sampling import Sampling
from signals.records import Labels
from store import records as stored
from store import turns
from store.store import Store


@dataclass(frozen=True, slots=True)
class Limits:
    """When and how the reply ends, and how it is drawn. Without `max_tokens` the context is the limit.

    `constraint` makes what the reply must keep to, on the lane's thread; `slot` is one that was asked for.
    """

    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    constraint: Callable[[], Constraint] | None = None
    slot: int | None = None


class Turns:
    """Serves turns on the lane and records them."""

    def __init__(
        self,
        store: Store,
        lane: LaneThread,
        adapters: AgentAdapters,
        rides: Rides,
        boarding: Boarding,
        metrics: Metrics,
        queue: TurnQueue,
        asked: AskedLessons,
        policies: Policies,
        *,
        end_tokens: frozenset[int],
        context_tokens: int,
    ) -> None:
        self.queue = queue
        self._store = store
        self._metrics = metrics
        self._lane = lane
        self._adapters = adapters
        self._rides = rides
        self._boarding = boarding
        self._asked = asked
        self._policies = policies
        self._end_tokens = end_tokens
        self._context_tokens = context_tokens
        self._endings = Unbroken()

    @asynccontextmanager
    async def serve(
        self, speaker: Speaker, prompt: Prompt, limits: Limits, learn: LearnOptions | None = None
    ) -> AsyncIterator[OpenTurn]:
        """Serve a turn for as long as the block runs; leaving it before `finish` cancels the turn.

        Raises:
            BadRequest: the prompt does not fit into a slot's context, or the lane cannot serve it as asked.
            TooMany: as many turns wait as may.
            LaneStopped: the lane serves no more.
        """
        self._check_fits(prompt)
        identity = f"turn-{uuid.uuid4().hex}"
        with self.queue.arrive(identity):
            if await self._is_private(speaker.agent, speaker.context):
                speaker = speaker.model_copy(update={"private": True})
            turn = await self._open(identity, speaker, prompt, limits, _own_lesson(identity, speaker, learn))
        try:
            yield turn
        finally:
            self._rides.leave(turn.id)
            if turn.own.correction is not None:
                self._lane.let_go(turn.id)
            if not turn.recorded:
                self._lane.cancel(turn.id)
                await self._endings.run(self._see_to_the_end(turn))

    async def finish(self, turn: OpenTurn, *, wait_seconds: float = 0.0) -> TurnLessons:
        """Record an ended turn; returns what became of its lessons.

        Lessons that still walk are waited for at most `wait_seconds`.
        """
        await self._record(turn)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        own = await self._own_fate(turn, wait_seconds)
        rode = await self._rides.fates(turn.id, wait_seconds=max(0.0, deadline - clock()))
        return TurnLessons(rode, own)

    async def _is_private(self, agent: str, context: str) -> bool:
        """Is the context private, by her policy or because a turn of it was?"""
        by_policy = self._policies.is_private(agent, context)
        return by_policy or await self._store.read(turns.context_is_private, agent=agent, context=context)

    async def settled(self) -> None:
        """Return once every turn that was left has come to its end and is recorded."""
        await self._endings.settled()

    async def _open(
        self, identity: str, speaker: Speaker, prompt: Prompt, limits: Limits, own: OwnLesson
    ) -> OpenTurn:
        stable = await self._adapters.stable(speaker.agent)
        row = open_row(identity, speaker, prompt, stable, lane=self._store.leases.lane)
        if own.labels is None:
            return await self._submit(row, speaker, prompt, limits, own)
        try:
            await self._store.write(turns.open_turn, row)
            with self._rides.claimed(own.labels.id):
                await self._asked.take_labels(own.labels, private=speaker.private, sender=speaker.sender)
                return await self._submit(row, speaker, prompt, limits, own)
        except BaseException:
            await self._endings.run(self._take_back(row, own.labels))
            raise

    async def _submit(
        self, row: stored.Turn, speaker: Speaker, prompt: Prompt, limits: Limits, own: OwnLesson
    ) -> OpenTurn:
        """Hand a turn to the lane, with its riders: again, if her stable set is replaced this very moment."""
        for again in (True, False):
            stable = await self._adapters.stable(speaker.agent)
            riders = await self._riders(row.id, speaker, own)
            order = self._order(row.id, stable, prompt, limits)
            try:
                handle = await self._lane.submit(replace(order, hold=own.correction is not None), riders)
            except TurnRejected as error:
                self._rides.unboard(row.id)
                if not again:
                    raise BadRequest(str(error)) from error
            except Exception:
                self._rides.unboard(row.id)
                raise
            else:
                row = replace(row, adapter=stable.label)
                return OpenTurn(row, speaker, prompt, stable, handle, own)
        raise AssertionError("the second rejection is the last")

    async def _riders(self, identity: str, speaker: Speaker, own: OwnLesson) -> list[LessonOrder]:
        if speaker.private:
            return []
        labels = None if own.labels is None else own.labels.id
        return await self._boarding.board(agent=speaker.agent, context=speaker.context, turn=identity, own=labels)

    async def _own_fate(self, turn: OpenTurn, wait_seconds: float) -> Fate | None:
        """What becomes of the lesson that the request itself asked for."""
        correction, labels = turn.own.correction, turn.own.labels
        if correction is not None:
            by = turn.speaker
            return await self._asked.learn_of_turn(
                correction, private=by.private, sender=by.sender, wait_seconds=wait_seconds
            )
        return None if labels is None else await self._asked.fate_in_turn(labels, wait_seconds=wait_seconds)

    def _order(self, turn: str, stable: Stable, prompt: Prompt, limits: Limits) -> TurnOrder:
        room = self._context_tokens - len(prompt.tokens)
        return TurnOrder(
            id=turn,
            tokens=prompt.tokens,
            max_tokens=min(room, limits.max_tokens or room),
            sampling=limits.sampling,
            stop=limits.stop,
            end_tokens=self._end_tokens,
            stable=stable.lane_name,
            slot=limits.slot,
            constraint=limits.constraint,
        )

    def _check_fits(self, prompt: Prompt) -> None:
        if 0 < len(prompt.tokens) < self._context_tokens:
            return
        raise BadRequest(
            f"{prompt.param} is {len(prompt.tokens)} tokens; a slot's context holds {self._context_tokens}, the "
            "prompt needs one of them and so does the reply: send between, or start the lane with a larger --ctx",
            param=prompt.param,
            code="context_length_exceeded",
        )

    async def _see_to_the_end(self, turn: OpenTurn) -> None:
        """Wait for the end of a cancelled turn, and record it as far as it came."""
        async for _ in turn.handle.events():
            pass
        await self._record(turn)
        if turn.own.labels is not None:
            await self._asked.give_up(turn.own.labels)

    async def _take_back(self, row: stored.Turn, labels: Labels) -> None:
        """A turn that has its row came to nothing before it was served."""
        with suppress(LaneStopped):  # what the lane tells of its riders is heard first
            await self._lane.call(lambda _lane: None)
        await self._store.write(turns.record_turn, replace(row, finish_reason="cancelled"))
        await self._asked.give_up(labels)

    async def _record(self, turn: OpenTurn) -> None:
        """Commit the turn's row. A turn that never had a slot was not served: it has none, or one to end."""
        turn.recorded = True
        self._boarding.stir()
        self._metrics.turn(turn.ended, prompt_tokens=len(turn.prompt.tokens))
        if turn.ended.slot is None and turn.own.labels is None:
            return
        row = turn.ended_row()
        self._metrics.backlog.enter(row)
        try:
            await self._store.write(turns.record_turn, row)
        finally:
            self._metrics.backlog.leave(row)
        if row.private:
            self._asked.turned_private(row.agent, row.context)


def _own_lesson(identity: str, speaker: Speaker, learn: LearnOptions | None) -> OwnLesson:
    if learn is None:
        return OwnLesson()
    return OwnLesson(learn.correction_of(identity, speaker), learn.labels_of(identity, speaker))
