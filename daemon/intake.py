"""A signal's way in: put on disk, then settled, which is planned into a lesson, applied, or refused.

- Acknowledged means committed: a signal is on disk before its sender is answered.
- A list is taken whole or not at all: one id that clashes refuses the list and records nothing of it.
- Settling is done again for whatever a crash left unsettled.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from daemon.adapters import AgentAdapters
from daemon.chat_template import HuggingFaceChat
from daemon.errors import Conflict
from daemon.records import pending_of, stored_lesson, stored_signal, turn_of
from daemon.rides import Pending, Rides
from signals.planning import plan
from signals.policy import Policy
from signals.records import Engram, LessonPlan, Outcome, Relevance, Signal, Verdict, parse_signal
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal
from store import lessons, signals, turns
from store.clock import now_us
from store.errors import Unknown
from store.records import KeptSignal, Link, Put
from store.records import Turn as StoredTurn
from store.store import Store
from store.words import Role

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lookup:
    """All that planning a signal needs from the store."""

    turn: StoredTurn | None
    private: bool
    relevance: float | None
    outcome: Outcome


class Intake:
    """Takes signals and settles them."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        chat: HuggingFaceChat,
        *,
        policy: Policy,
        context_tokens: int,
        started_at_us: int,
    ) -> None:
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._chat = chat
        self._policy = policy
        self._context_tokens = context_tokens
        self._started_at_us = started_at_us

    async def take(self, given: Sequence[Signal], *, private: bool) -> list[tuple[Put, KeptSignal]]:
        """Put signals on disk and settle the new ones; each with its state now.

        Raises:
            Conflict: an id is taken by a signal with another body; nothing was recorded.
        """
        puts = await self._store.write(_put_all, given, private)
        for signal, put in zip(given, puts, strict=True):
            if put.status == "new":
                await self.settle(signal)
        kept = [await self._store.read(signals.signal_of, put.id) for put in puts]
        return list(zip(puts, kept, strict=True))

    async def recover(self) -> None:
        """Take up what a crash left: rides cut off go back to waiting, signals received are settled."""
        for kept in await self._store.write(lessons.recover):
            turn = await self._store.read(turns.turn_of, kept.lesson.turn)
            stable = await self._adapters.lane_name(turn.adapter)
            self._rides.add(pending_of(kept, stable=stable, served_here=False))
        for received in await self._store.read(signals.received_signals):
            if received.signal.body is None:
                await self._refuse(received.signal.id, _private(received.signal.id))
            else:
                await self.settle(parse_signal(dict(received.signal.body)))

    async def settle(self, signal: Signal) -> None:
        """Plan, apply or refuse one signal that is on disk."""
        match signal:
            case Relevance():
                await self._store.write(signals.apply_signal, signal.id)
                await self._replan(self._rides.made_by(signal.engram), because=signal.id)
            case Verdict():
                await self._store.write(signals.apply_signal, signal.id)
                for pending in self._rides.about(signal.turn):
                    await self._replan(pending, because=signal.id)
            case _:
                await self._plan(signal)

    async def _plan(self, signal: LessonSignal) -> None:
        found = await self._store.read(_look_up, signal)
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

    async def _replan(self, pending: Pending | None, *, because: str) -> None:
        """Weigh a waiting lesson anew, or refuse it, now that a signal about it has come. Riding is too late."""
        if pending is None or pending.riding:
            return
        maker = await self._store.read(signals.signal_of, pending.signals[0])
        if maker.signal.body is None:
            return
        signal = parse_signal(dict(maker.signal.body))
        assert not isinstance(signal, Relevance | Verdict), f"lesson {pending.id} is made by a {signal.kind}"
        planned = await self._planned(signal, await self._store.read(_look_up, signal))
        if pending.riding:
            return
        if isinstance(planned, Refusal):
            await self._refuse_lesson(pending, planned)
        elif planned.weights != pending.weights:
            pending.weights = planned.weights
            await self._store.write(lessons.reweigh_lesson, pending.id, weights=planned.weights, signal=because)

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

    async def _refuse_lesson(self, pending: Pending, refusal: Refusal) -> None:
        self._rides.drop(pending.id)
        await self._store.write(
            lessons.refuse_lesson,
            pending.id,
            code=refusal.code,
            message=refusal.message,
            position=refusal.position,
        )


def _put_all(session: Session, given: Sequence[Signal], private: bool) -> list[Put]:
    rows = [stored_signal(signal, now_us=now_us()) for signal in given]
    hidden = {
        (row.agent, row.context): private
        or turns.context_is_private(session, agent=row.agent, context=row.context)
        for row in rows
    }
    puts = signals.put_signals(session, [replace(row, private=hidden[row.agent, row.context]) for row in rows])
    if clashes := [put.id for put in puts if put.status == "conflict"]:
        raise Conflict(
            f"signal {clashes[0]!r} is already recorded with another body"
            + (f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else "")
            + "; nothing of this request was recorded. Give a new signal an id of its own",
            param="id",
            code="signal_conflict",
        )
    return puts


def _look_up(session: Session, signal: LessonSignal) -> Lookup:
    try:
        turn = turns.turn_of(session, signal.turn)
    except Unknown:
        turn = None
    kept = signals.signal_of(session, signal.id).signal
    relevance = None
    if isinstance(signal, Engram):
        told = signals.latest_relevance(session, agent=signal.agent, engram=signal.id)
        relevance = None if told is None or told.signal.body is None else told.signal.body["relevance"]
    verdict = signals.verdict_of(session, agent=signal.agent, turn=signal.turn)
    outcome = None if verdict is None or verdict.signal.body is None else verdict.signal.body["outcome"]
    return Lookup(
        turn=turn,
        private=kept.private,
        relevance=None if relevance is None else float(str(relevance)),
        outcome=Outcome.UNKNOWN if outcome is None else Outcome(str(outcome)),
    )


def _private(signal: str) -> Refusal:
    return Refusal(
        code=RefusalCode.PRIVATE_CONTEXT,
        message=f"Signal {signal} is of a private context, and nothing private trains.",
    )
