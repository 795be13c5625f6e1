"""Serving one turn: from a prompt to its reply, its row in the store, and the lessons that rode it.

- The stable set is fixed when the turn is submitted; it and the turn's id are known before the first token.
- A turn whose client goes away is cancelled, and its slot is free within a step.
- The turn's row is committed before its end is told, so that a signal about it never comes too early.
- Of a private turn nothing that was said is kept, and no lesson rides it. In a context where one turn was
  private, every later one is.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

from daemon.adapters import AgentAdapters
from daemon.boarding import Boarding
from daemon.errors import BadRequest, Unavailable
from daemon.lane_thread import LaneThread, TurnHandle
from daemon.limits import TurnQueue
from daemon.metrics import Metrics
from daemon.rides import Rides
from daemon.speaker import Speaker
from daemon.stables import Stable
from engine.constraint import Constraint
from engine.errors import TurnRejected
from engine.orders import LessonOrder, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampling
from store import records as stored
from store import turns
from store.clock import now_us
from store.columns import JsonValue
from store.store import Store


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: the tokens, and the conversation they were rendered from, empty for a raw prompt.

    `template_args` are all that the template was given beside the messages, tools included: rendering with them
    again is rendering what was served. `param` is the request's field that errors about it name.
    """

    tokens: tuple[int, ...]
    messages: Sequence[Mapping[str, JsonValue]]
    template_args: Mapping[str, JsonValue]
    param: str = "messages"


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


@dataclass(slots=True)
class OpenTurn:
    """A turn being served."""

    id: str
    speaker: Speaker
    prompt: Prompt
    stable: Stable
    handle: TurnHandle
    created_at_us: int
    recorded: bool = False

    async def events(self) -> AsyncIterator[TokenServed | TurnEnded]:
        """The reply's tokens as they come, and its end.

        Raises:
            Unavailable: the turn could not be served to its end.
        """
        async for event in self.handle.events():
            if isinstance(event, TurnEnded) and event.reason == "failed":
                raise Unavailable(f"the turn could not be served to its end: {event.error}")
            if isinstance(event, TokenServed | TurnEnded):
                yield event

    @property
    def ended(self) -> TurnEnded:
        """The turn's end, once `events` is exhausted."""
        assert self.handle.ended is not None, f"turn {self.id} has not ended"
        return self.handle.ended


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
        self._end_tokens = end_tokens
        self._context_tokens = context_tokens
        self._endings: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def serve(self, speaker: Speaker, prompt: Prompt, limits: Limits) -> AsyncIterator[OpenTurn]:
        """Serve a turn for as long as the block runs; leaving it before `finish` cancels the turn.

        Raises:
            BadRequest: the prompt does not fit into a slot's context, or the lane cannot serve it as asked.
            TooMany: as many turns wait as may.
            LaneStopped: the lane serves no more.
        """
        self._check_fits(prompt)
        identity = f"turn-{uuid.uuid4().hex}"
        with self.queue.arrive(identity):
            if await self._store.read(turns.context_is_private, agent=speaker.agent, context=speaker.context):
                speaker = speaker.model_copy(update={"private": True})
            turn = await self._open(identity, speaker, prompt, limits)
        try:
            yield turn
        finally:
            self._rides.leave(turn.id)
            if not turn.recorded:
                self._lane.cancel(turn.id)
                ending = asyncio.ensure_future(self._see_to_the_end(turn))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
                await asyncio.shield(ending)

    async def finish(self, turn: OpenTurn, *, wait_seconds: float = 0.0) -> list[dict[str, object]]:
        """Record an ended turn; returns what became of the lessons that rode it, as JSON.

        Lessons that still walk are waited for at most `wait_seconds`.
        """
        await self._record(turn)
        fates = await self._rides.fates(turn.id, wait_seconds=wait_seconds)
        return [fate.as_json() for fate in fates]

    async def settled(self) -> None:
        """Return once every turn that was left has come to its end and is recorded."""
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _open(self, turn: str, speaker: Speaker, prompt: Prompt, limits: Limits) -> OpenTurn:
        created_at_us = now_us()
        riders: list[LessonOrder] = []
        if not speaker.private:
            riders = await self._boarding.board(agent=speaker.agent, context=speaker.context, turn=turn)
        try:
            stable = await self._adapters.stable(speaker.agent)
            order = self._order(turn, stable, prompt, limits)
            try:
                handle = await self._lane.submit(order, riders)
            except TurnRejected:  # her stable set was replaced this very moment
                stable = await self._adapters.stable(speaker.agent)
                handle = await self._lane.submit(replace(order, stable=stable.lane_name), riders)
        except TurnRejected as error:
            self._rides.unboard(turn)
            raise BadRequest(str(error)) from error
        except Exception:
            self._rides.unboard(turn)
            raise
        return OpenTurn(turn, speaker, prompt, stable, handle, created_at_us)

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

    async def _record(self, turn: OpenTurn) -> None:
        """Commit the turn's row. A turn that never had a slot was not served, and has none."""
        turn.recorded = True
        self._boarding.stir()
        ended, prompt = turn.ended, turn.prompt
        self._metrics.turn(ended, prompt_tokens=len(prompt.tokens))
        if ended.slot is None:
            return
        first = ended.first_token_seconds
        row = stored.Turn(
            id=turn.id,
            agent=turn.speaker.agent,
            context=turn.speaker.context,
            private=turn.speaker.private,
            slot=ended.slot,
            adapter=turn.stable.label,
            messages=cast(JsonValue, [dict(message) for message in prompt.messages]),
            template_args=prompt.template_args,
            prompt_tokens=prompt.tokens,
            reply_tokens=ended.reply_tokens,
            reply_text=ended.reply,
            prompt_token_count=len(prompt.tokens),
            reply_token_count=len(ended.reply_tokens),
            cached_token_count=ended.cached_tokens,
            finish_reason=ended.reason,
            created_at_us=turn.created_at_us,
            first_token_ms=None if first is None else first * 1000,
            total_ms=ended.total_seconds * 1000,
        )
        self._metrics.backlog.enter(row)
        try:
            await self._store.write(turns.record_turn, row)
        finally:
            self._metrics.backlog.leave(row)
