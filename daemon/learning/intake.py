"""A signal's way in: put on disk, then settled, which is planned into a lesson, applied, or refused.

- Acknowledged means committed: a signal is on disk before its sender is answered.
- A list is taken whole or not at all: one id that clashes refuses the list and records nothing of it.
- One signal is settled at a time, so that what is told about another is never lost between two looks.
- Settling is done again for whatever a crash left unsettled, once the turns it left open are ended.
"""

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from daemon.http.errors import BadRequest, Conflict
from daemon.http.limits import SignalRoom
from daemon.learning.adapters import AgentAdapters
from daemon.learning.learner import Learner
from daemon.learning.lookups import Lookup, look_up, state_of
from daemon.learning.records import pending_of, stored_lesson, stored_signal, turn_of
from daemon.learning.rides import Pending, Rides
from daemon.text.chat_template import HuggingFaceChat
from signals.planning import plan
from signals.plans import LessonPlan
from signals.policy import Policy, policy_off
from signals.records import Correction, Relevance, Signal, Verdict, parse_signal
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal
from store import lessons, signals, turns
from store.clock import now_us
from store.records import KeptSignal, Link, Put
from store.store import Store
from store.words import Role, SignalState

logger = logging.getLogger(__name__)

_WORDLESS = frozenset({"relevance", "verdict"})
"""Kinds whose bodies hold none of what was said; they are kept whole, and so still count, in private contexts."""


class Intake:
    """Takes signals and settles them."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        learner: Learner,
        chat: HuggingFaceChat,
        room: SignalRoom,
        *,
        policy: Policy,
        context_tokens: int,
        started_at_us: int,
    ) -> None:
        self._room = room
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._learner = learner
        self._settling = asyncio.Lock()
        self._work: set[asyncio.Future[list[tuple[Put, KeptSignal]]]] = set()
        self._chat = chat
        self._policy = policy
        self._context_tokens = context_tokens
        self._started_at_us = started_at_us

    async def take(
        self, given: Sequence[Signal], *, private: bool, sent: str | None = None
    ) -> list[tuple[Put, KeptSignal]]:
        """Put signals on disk and settle them; each with its state now. Goes on if the sender goes away.

        `sent` is the fingerprint of what the sender sent, where that is not the signals themselves.

        Raises:
            BadRequest: one names a token that is not there; nothing was recorded.
            Conflict: an id is taken by a signal with another body; nothing was recorded.
            TooMany: as many are on their way as may be; nothing was recorded.
        """
        for signal in given:
            self._check_tokens(signal)
        self._room.take(len(given))
        task = self._begin(given, private=private, sent=sent)
        task.add_done_callback(lambda _task: self._room.leave(len(given)))
        return await asyncio.shield(task)

    async def take_own(self, signal: Signal, *, private: bool) -> None:
        """Put a signal that came with a turn on disk and settle it. As the turn had room, so has it."""
        await asyncio.shield(self._begin([signal], private=private, sent=None))

    async def settled(self) -> None:
        """Return once everything that was taken is settled."""
        await asyncio.gather(*self._work, return_exceptions=True)

    async def recover(self) -> None:
        """Take up what a crash left: turns end, rides wait again and are weighed anew, signals are settled."""
        await self._store.write(turns.end_open_turns)
        for kept in await self._store.write(lessons.recover):
            turn = await self._store.read(turns.turn_of, kept.lesson.turn)
            stable = await self._adapters.lane_name(turn.adapter)
            pending = pending_of(kept, stable=stable, served_here=False)
            self._rides.add(pending)
            await self._at_the_border(self._replan(pending), what=f"lesson {pending.id}")
        for received in await self._store.read(signals.received_signals):
            await self._at_the_border(self._settle_kept(received), what=f"signal {received.signal.id}")

    def _begin(
        self, given: Sequence[Signal], *, private: bool, sent: str | None
    ) -> "asyncio.Future[list[tuple[Put, KeptSignal]]]":
        task = asyncio.ensure_future(self._take(given, private=private, sent=sent))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def _check_tokens(self, signal: Signal) -> None:
        """Refuse a reply in tokens that the lane's tokenizer does not know."""
        tokens = signal.reply_tokens if isinstance(signal, Correction) else None
        known = self._chat.vocabulary_tokens
        unknown = next((token for token in tokens or () if token >= known), None)
        if unknown is not None:
            raise BadRequest(
                f"reply_tokens: there is no token {unknown}; this model's tokens are 0 to {known - 1}",
                param="reply_tokens",
            )

    async def _take(
        self, given: Sequence[Signal], *, private: bool, sent: str | None
    ) -> list[tuple[Put, KeptSignal]]:
        puts = await self._store.write(_put_all, given, private, sent)
        for signal, put in zip(given, puts, strict=True):
            async with self._settling:
                kept = await self._store.read(signals.signal_of, put.id)
                if kept.state is SignalState.RECEIVED:
                    await self._settle(signal)
        kept_now = [await self._store.read(signals.signal_of, put.id) for put in puts]
        return list(zip(puts, kept_now, strict=True))

    async def _settle_kept(self, received: KeptSignal) -> None:
        if received.signal.body is None:
            await self._refuse(received.signal.id, _private(received.signal.id))
        else:
            async with self._settling:
                await self._settle(parse_signal(dict(received.signal.body)))

    async def _settle(self, signal: Signal) -> None:
        """Plan, apply or refuse one signal that is on disk."""
        match signal:
            case Relevance() | Verdict():
                refusal = await self._refusal_of(signal)
                if refusal is not None:
                    await self._refuse(signal.id, refusal)
                    return
                await self._store.write(signals.apply_signal, signal.id)
                for pending in self._concerned(signal):
                    await self._replan(pending)
            case _:
                await self._plan(signal)

    async def _refusal_of(self, signal: Relevance | Verdict) -> Refusal | None:
        """Why a signal about others changes nothing, if so. One that comes before its engram is remembered."""
        if not self._policy.learns(signal.agent):
            return policy_off(signal.agent)
        if isinstance(signal, Relevance):
            state = await self._store.read(state_of, signal.engram)
            if state in {SignalState.RIDING, SignalState.LEARNED}:
                message = f"The lesson of engram {signal.engram} has ridden; its weight can no longer change."
                return Refusal(code=RefusalCode.SUPERSEDED, message=message)
        return None

    def _concerned(self, signal: Relevance | Verdict) -> list[Pending]:
        if isinstance(signal, Verdict):
            return self._rides.about(signal.turn)
        made = self._rides.made_by(signal.engram)
        return [] if made is None else [made]

    async def _at_the_border(self, work: Coroutine[object, object, None], *, what: str) -> None:
        """One signal that cannot be settled must not keep the service from starting."""
        try:
            await work
        except Exception:
            logger.exception("%s could not be taken up", what)

    async def _plan(self, signal: LessonSignal) -> None:
        found = await self._store.read(look_up, signal)
        planned = await self._planned(signal, found)
        if isinstance(planned, Refusal):
            await self._refuse(signal.id, planned)
            return
        assert found.turn is not None, f"signal {signal.id} was planned without a turn"
        lesson = stored_lesson(planned, identity=f"lesson-{uuid.uuid4().hex}")
        links = [Link(identity, Role.MAKES) for identity in planned.signals]
        await self._store.write(lessons.plan_lesson, lesson, signals=links)
        kept = await self._store.read(lessons.lesson_of, lesson.id)
        stable = await self._adapters.lane_name(found.turn.adapter)
        served_here = found.turn.created_at_us >= self._started_at_us
        self._rides.add(pending_of(kept, stable=stable, served_here=served_here))

    async def _replan(self, pending: Pending) -> None:
        """Weigh a waiting lesson anew, or refuse it, by what is known now. Riding is too late."""
        maker = await self._store.read(signals.signal_of, pending.signals[0])
        if maker.signal.body is None:
            return
        signal = parse_signal(dict(maker.signal.body))
        assert not isinstance(signal, Relevance | Verdict), f"lesson {pending.id} is made by a {signal.kind}"
        found = await self._store.read(look_up, signal)
        planned = await self._planned(signal, found)
        if pending.riding or pending.id not in self._rides:
            return
        if isinstance(planned, Refusal):
            await self._learner.refuse_waiting(pending, planned)
        elif planned.weights != pending.weights:
            assert found.weighed_by is not None, f"lesson {pending.id} is weighed anew by nothing"
            pending.weights = planned.weights
            await self._store.write(
                lessons.reweigh_lesson, pending.id, weights=planned.weights, signal=found.weighed_by
            )

    async def _planned(self, signal: LessonSignal, found: Lookup) -> LessonPlan | Refusal:
        policy = self._policy
        if found.private:
            policy = policy.model_copy(update={"private_contexts": frozenset({signal.context})})
        return await asyncio.to_thread(
            plan,
            signal,
            None if found.turn is None else turn_of(found.turn, context_tokens=self._context_tokens),
            policy=policy,
            tokenizer=self._chat,
            context_tokens=self._context_tokens,
            relevance=found.relevance,
            outcome=found.outcome,
        )

    async def _refuse(self, signal: str, refusal: Refusal) -> None:
        await self._store.write(
            signals.refuse_signal,
            signal,
            code=refusal.code,
            message=refusal.message,
            position=refusal.position,
        )


def _put_all(session: Session, given: Sequence[Signal], private: bool, sent: str | None) -> list[Put]:
    rows = [stored_signal(signal, now_us=now_us(), sent=sent) for signal in given]
    hidden = {
        row.id: private or turns.context_is_private(session, agent=row.agent, context=row.context)
        for row in rows
        if row.kind not in _WORDLESS
    }
    puts = signals.put_signals(session, [replace(row, private=hidden.get(row.id, False)) for row in rows])
    if clashes := [put.id for put in puts if put.status == "conflict"]:
        raise conflict(*clashes)
    return puts


def conflict(*clashes: str) -> Conflict:
    """Ids that are taken by other bodies."""
    more = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
    return Conflict(
        f"signal {clashes[0]!r} is already recorded with another body{more}; nothing of this request was "
        "recorded. Give a new signal an id of its own",
        param="id",
        code="signal_conflict",
    )


def _private(signal: str) -> Refusal:
    return Refusal(
        code=RefusalCode.PRIVATE_CONTEXT,
        message=f"Signal {signal} is of a private context, and nothing private trains.",
    )
