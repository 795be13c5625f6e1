"""A signal's way in: put on disk, then settled, which is planned into a lesson, applied, or refused.

- Acknowledged means committed: a signal is on disk before its sender is answered.
- A list is taken whole or not at all: one id that clashes refuses the list and records nothing of it. A list that
  is sent to be taken each by itself has its clashes told, and the others recorded.
- One signal's sender is answered when it is settled; a list's when it is on disk.
- Settling goes batch by batch, never two at once; what a sender waits for goes first (`Backlog`).
- Whose an agent is settles what is said of her (`Leasing`); what is not for this lane waits for the one it is for.
- Settling is done again for whatever a crash left unsettled, once the turns it left open are ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from daemon.http.errors import BadRequest
from daemon.http.limits import SignalRoom
from daemon.learning.adapters import AgentAdapters
from daemon.learning.backlog import Backlog
from daemon.learning.leasing import Leasing
from daemon.learning.policies import Policies
from daemon.learning.precedence import Precedence
from daemon.learning.putting import Batch, put_batch
from daemon.learning.records import pending_of
from daemon.learning.rides import Rides
from daemon.learning.settling import Settling
from daemon.text.chat_template import HuggingFaceChat
from signals.records import Correction, Signal, parse_signal
from signals.refusals import RefusalCode
from signals.weights import Trust
from store import lessons, signals, turns
from store.records import KeptSignal, Put, RefusedSignal
from store.store import Store
from store.words import SignalState

logger = logging.getLogger(__name__)

SETTLED_TOGETHER = 40
"""Signals settled in one transaction: a few milliseconds of the writer's time, which others' putting waits for."""


F = TypeVar("F", bound="asyncio.Future[Any]")


@dataclass(frozen=True, slots=True)
class _Taken:
    """What became of a batch when it was put, and the task that settles it."""

    puts: list[Put]
    settled: "asyncio.Future[None]"


class Intake:
    """Takes signals, and has them settled."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        chat: HuggingFaceChat,
        room: SignalRoom,
        settling: Settling,
        leasing: Leasing,
        precedence: Precedence,
        *,
        policies: Policies,
    ) -> None:
        self._leasing = leasing
        self._room = room
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._chat = chat
        self._policies = policies
        self._settling = settling
        self._precedence = precedence
        self._one_settles = asyncio.Lock()
        self._backlog = Backlog()
        self._settler: asyncio.Future[None] | None = None
        self._work: set[asyncio.Future[Any]] = set()

    async def take(
        self,
        given: Sequence[Signal],
        *,
        private: bool,
        sender: Trust,
        sent: str | None = None,
        each: bool = False,
    ) -> list[Put]:
        """Put signals on disk and settle them; each as it now is. Goes on if the sender goes away.

        `sender` says how far who sent them is trusted; `sent` is the fingerprint of what was sent, where that is
        not the signals themselves. With `each` a signal that clashes is told of in its `Put`, and the others are
        kept.

        Raises:
            BadRequest: one names a token that is not there; nothing was recorded.
            Conflict: an id is taken by a signal with another body; nothing was recorded.
            TooMany: as many are on their way as may be; nothing was recorded.
        """
        for signal in given:
            self.check_tokens(signal)
        self._room.take(len(given))
        taking = self._begin(Batch(given, private, sender, sent, each), room=len(given))
        taken = await asyncio.shield(taking)
        if len(taken.puts) > 1:
            return taken.puts
        await asyncio.wait([taken.settled])
        (put,) = taken.puts
        return [replace(put, kept=await self._store.read(signals.signal_of, put.id))]

    async def take_own(self, signal: Signal, *, private: bool, sender: Trust) -> None:
        """Put a signal that came with a turn on disk and settle it. As the turn had room, so has it."""
        taken = await asyncio.shield(self._begin(Batch([signal], private, sender), room=0))
        await asyncio.shield(taken.settled)

    async def settled(self) -> None:
        """Return once everything that was taken is settled."""
        while self._work:
            await asyncio.gather(*self._work, return_exceptions=True)

    async def recover(self) -> None:
        """Take up what a crash left: turns end, rides wait again and are weighed anew, signals are settled."""
        await self._store.write(turns.end_open_turns)
        if self._leasing.shared:
            await self._leasing.begin()
        else:
            await self._take_up_lessons(None)
        given = await self._readable(await self._store.read(signals.received_signals))
        await self._settle_mine(given, room=0)

    async def take_up(self, agent: str) -> None:
        """An agent belongs to this lane from now on: go on with what waits of hers."""
        async with self._one_settles:
            await self._take_up_lessons(agent)
        received = await self._store.read(signals.received_signals)
        await self._settle(await self._readable([kept for kept in received if kept.signal.agent == agent]), room=0)

    async def hear(self, ids: Sequence[str]) -> None:
        """Settle those of the signals that another lane took that are for this one."""
        kept = await self._store.read(signals.signals_of, ids)
        received = [one for one in kept if one.state is SignalState.RECEIVED]
        holds = self._store.leases.holds
        mine = [one for one in received if one.signal.body is not None or holds(one.signal.agent)]
        await self._settle_mine(await self._readable(mine), room=0, heard=True)

    @asynccontextmanager
    async def taking_up(self, agents: Sequence[str]) -> AsyncIterator[None]:
        """For as long as the block runs nothing is settled; then those agents' lessons wait as the store has them.

        None of them may ride.
        """
        async with self._one_settles:
            for pending in [one for agent in agents for one in self._rides.unridden(agent)]:
                self._rides.drop(pending.id)
            try:
                yield
            finally:
                for agent in agents:
                    await self._take_up_lessons(agent)

    def turned_private(self, agent: str, context: str) -> None:
        """A context is private from now on: see to it that no lesson of it that waits is learned."""
        if any(one.context == context for one in self._rides.unridden(agent)):
            weighing = self._at_the_border(self.weigh_anew(agent), what=f"what waits of {agent}")
            self._track(asyncio.ensure_future(weighing))

    async def weigh_anew(self, agent: str) -> None:
        """Hold an agent's lessons that wait to what is known now."""
        async with self._one_settles:
            await self._settling.weigh_anew(self._rides.unridden(agent))

    def check_tokens(self, signal: Signal) -> None:
        """Refuse a reply in tokens that the lane's tokenizer does not know.

        Raises:
            BadRequest: one is not known.
        """
        tokens = signal.reply_tokens if isinstance(signal, Correction) else None
        known = self._chat.vocabulary_tokens
        unknown = next((token for token in tokens or () if token >= known), None)
        if unknown is not None:
            raise BadRequest(
                f"reply_tokens: there is no token {unknown}; this model's tokens are 0 to {known - 1}",
                param="reply_tokens",
            )

    def _begin(self, batch: Batch, *, room: int) -> "asyncio.Future[_Taken]":
        """Put a batch; what was put has its settling begun, and leaves the room with its end."""

        async def take() -> _Taken:
            try:
                with self._precedence.going_first():
                    puts = await self._store.write(put_batch, batch, self._policies.now)
            except BaseException:
                self._room.leave(room)
                raise
            left = self._left_to_settle(batch.signals, puts)
            settling = self._settle_mine(left, room=room, waited_for=len(puts) == 1)
            return _Taken(puts, self._track(asyncio.ensure_future(settling)))

        return self._track(asyncio.ensure_future(take()))

    def _left_to_settle(self, given: Sequence[Signal], puts: Sequence[Put]) -> list[Signal]:
        """Those that are to be settled: not what ended as it was put, where nothing waits that it concerns.

        What is settled meanwhile may have been planned without it, and is weighed anew after that.
        """
        others_settle = len(self._backlog) > 0 or self._one_settles.locked()
        return [
            signal
            for signal, put in zip(given, puts, strict=True)
            if put.status != "conflict"
            if others_settle or put.state is SignalState.RECEIVED or self._settling.concerns(signal)
        ]

    def _track(self, task: F) -> F:
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _settle_mine(
        self, given: Sequence[Signal], *, room: int, heard: bool = False, waited_for: bool = False
    ) -> None:
        """Settle those that are for this lane; the others are on disk for the lane that they are for."""
        try:
            mine = await self._leasing.mine(given, heard=heard)
        except Exception:  # the border of one batch: it is taken up with its agents
            logger.exception("whose signals are could not be told")
            mine = []
        await self._settle(mine, room=room, waited_for=waited_for)

    async def _settle(self, given: Sequence[Signal], *, room: int, waited_for: bool = False) -> None:
        """See to it that these are settled, and return when they are."""
        settled = self._backlog.add(given, waited_for=waited_for)
        if self._backlog and (self._settler is None or self._settler.done()):
            self._settler = self._track(asyncio.ensure_future(self._settle_all()))
        try:
            with self._precedence.waiting() if waited_for else nullcontext():
                await settled
        finally:
            self._room.leave(room)

    async def _settle_all(self) -> None:
        """Settle until nothing waits to be; between two batches others may change what waits to ride."""
        while self._backlog:
            async with self._one_settles:
                await self._settle_next()

    async def _settle_next(self) -> None:
        batch = self._backlog.take(SETTLED_TOGETHER)
        try:
            await self._settling.settle(batch)
        except Exception:
            logger.exception("signals could not be settled together; each is by itself")
            for signal in batch:
                await self._at_the_border(self._settling.settle([signal]), what=f"signal {signal.id}")
        finally:
            self._backlog.settled(batch)

    async def _readable(self, received: Sequence[KeptSignal]) -> list[Signal]:
        """What was received; private signals, of which nothing is kept to be read, are refused."""
        for kept in received:
            if kept.signal.body is None:
                refusing = self._store.write(signals.refuse_signals, [_private(kept.signal.id)])
                await self._at_the_border(refusing, what=f"signal {kept.signal.id}")
        return [parse_signal(dict(one.signal.body)) for one in received if one.signal.body is not None]

    async def _take_up_lessons(self, agent: str | None) -> None:
        """An agent's lessons wait in memory, cut off rides again; without one everybody's.

        One that cannot be held to what is known now, such as the verdict it waits for, waits on disk alone.
        """
        for kept in await self._store.write(lessons.recover, agent):
            if kept.lesson.id not in self._rides:
                turn = await self._store.read(turns.turn_of, kept.lesson.turn)
                stable = await self._adapters.lane_name(turn)
                pending = pending_of(kept, stable=stable, served_here=False)
                self._rides.add(pending)
                with self._rides.changing([pending], over=()):
                    weighing = self._settling.weigh_anew([pending])
                    weighed = await self._at_the_border(weighing, what=f"lesson {pending.id}")
                    if not weighed and pending.id in self._rides:
                        self._rides.drop(pending.id)

    async def _at_the_border(self, work: Coroutine[object, object, None], *, what: str) -> bool:
        """One signal's or lesson's border: it is on disk, and taken up at the next start. Did it end well?"""
        try:
            await work
        except Exception:
            logger.exception("%s could not be taken up", what)
            return False
        return True


def _private(signal: str) -> RefusedSignal:
    message = f"Signal {signal} is of a private context, and nothing private trains."
    return RefusedSignal(signal, RefusalCode.PRIVATE_CONTEXT, message)
