"""Settling: signals that are on disk are planned into lessons, applied, or refused, many in a few transactions.

- Relevances and verdicts are applied with the putting itself; what they concern is weighed anew here.
- Planning reads in one transaction and is written in another. Nobody else settles in between (`Intake` sees to
  that), so that what is told about a signal is never lost between two looks.
- One signal that cannot be settled takes no other with it: it is logged, and taken up again at the next start.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from daemon.learning.adapters import AgentAdapters
from daemon.learning.learner import Learner
from daemon.learning.lookups import Lookup, look_up
from daemon.learning.records import stored_lesson, turn_of, waiting_of
from daemon.learning.rides import Pending, Rides
from daemon.text.chat_template import HuggingFaceChat
from signals.planning import plan
from signals.plans import LessonPlan
from signals.policy import Policy, policy_off
from signals.records import Relevance, Signal, Verdict, parse_signal
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal
from store import lessons, signals
from store.records import Link, PlannedLesson, RefusedSignal
from store.store import Store
from store.words import Role, SignalState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    """A signal, what was known of it, and what planning made of that."""

    signal: LessonSignal
    found: Lookup
    outcome: LessonPlan | Refusal
    lesson: str = field(default_factory=lambda: f"lesson-{uuid.uuid4().hex}")
    """The id of the lesson, if it makes one."""


class Settling:
    """Settles signals that are on disk. One caller at a time."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        learner: Learner,
        chat: HuggingFaceChat,
        *,
        policy: Policy,
        context_tokens: int,
        started_at_us: int,
    ) -> None:
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._learner = learner
        self._chat = chat
        self._policy = policy
        self._context_tokens = context_tokens
        self._started_at_us = started_at_us

    async def settle(self, given: Sequence[Signal]) -> None:
        """Settle signals. Those that are settled already stay as they are; what these concern is weighed anew."""
        standing = await self._store.read(signals.states_of, [signal.id for signal in given])
        received = [signal for signal in given if standing.get(signal.id) is SignalState.RECEIVED]
        makers = [signal for signal in received if not isinstance(signal, Relevance | Verdict)]
        new = await self._plan_new(makers)
        concerned = {pending.id: pending for signal in given for pending in self._concerned(signal)}
        await self.weigh_anew([pending for pending in concerned.values() if pending.id not in new])

    async def weigh_anew(self, waiting: Sequence[Pending]) -> None:
        """Weigh waiting lessons anew, or refuse them, by what is known now. Riding is too late."""
        if not waiting:
            return
        makers = await self._store.read(signals.signals_of, [pending.signals[0] for pending in waiting])
        made = [
            (pending, _lesson_signal(dict(maker.signal.body)))
            for pending, maker in zip(waiting, makers, strict=True)
            if maker.signal.body is not None
        ]
        planned = await self._planned([signal for _, signal in made])
        pendings = {signal.id: pending for pending, signal in made}
        still = [(pendings[one.signal.id], one) for one in planned]
        still = [(pending, one) for pending, one in still if pending.id in self._rides and not pending.riding]
        await self._weigh(still)

    def _concerned(self, signal: Signal) -> list[Pending]:
        match signal:
            case Verdict():
                return self._rides.about(signal.turn)
            case Relevance():
                made = self._rides.made_by(signal.engram)
                return [] if made is None else [made]
            case _:
                return []

    async def _plan_new(self, makers: Sequence[LessonSignal]) -> set[str]:
        """Plan signals; the ids of their lessons."""
        planned = await self._planned(makers)
        if not planned:
            return set()
        try:
            at_us = await self._store.write(write_planned, planned)
            kept = planned
        except Exception:  # the border of each: those that can be written are
            logger.exception("%d signals could not be settled together; each is by itself", len(planned))
            at_us, kept = await self._write_each(planned)
        await self._wait(kept, planned_at_us=at_us)
        return {one.lesson for one in kept}

    async def _write_each(self, planned: Sequence[Planned]) -> tuple[int, list[Planned]]:
        at_us, kept = 0, list[Planned]()
        for one in planned:
            try:
                at_us = await self._store.write(write_planned, [one])
                kept.append(one)
            except Exception:  # one signal's border
                logger.exception("signal %s could not be settled", one.signal.id)
        return at_us, kept

    async def _wait(self, kept: Sequence[Planned], *, planned_at_us: int) -> None:
        """The lessons wait for their rides."""
        plans = [(one, one.outcome) for one in kept if not isinstance(one.outcome, Refusal)]
        stables = dict[str, str]()
        for one, made in plans:
            turn = one.found.turn
            assert turn is not None, f"signal {one.signal.id} was planned without a turn"
            if turn.adapter not in stables:
                stables[turn.adapter] = await self._adapters.lane_name(turn.adapter)
            pending = waiting_of(
                made,
                identity=one.lesson,
                stable=stables[turn.adapter],
                planned_at_us=planned_at_us,
                served_here=turn.created_at_us >= self._started_at_us,
            )
            self._rides.add(pending)

    async def _weigh(self, anew: Sequence[tuple[Pending, Planned]]) -> None:
        refused = list[tuple[Pending, Refusal]]()
        weighed = list[tuple[str, tuple[float, ...], str]]()
        for pending, one in anew:
            if isinstance(one.outcome, Refusal):
                refused.append((pending, one.outcome))
            elif one.outcome.weights != pending.weights:
                assert one.found.weighed_by is not None, f"lesson {pending.id} is weighed anew by nothing"
                pending.weights = one.outcome.weights
                weighed.append((pending.id, pending.weights, one.found.weighed_by))
        if refused:
            await self._learner.refuse_all_waiting(refused)
        if weighed:
            await self._store.write(_reweigh, weighed)

    async def _planned(self, given: Sequence[LessonSignal]) -> list[Planned]:
        """Plan what can be planned, in the order given; on a thread, as it takes a while."""
        if not given:
            return []
        found = await self._store.read(look_up, given)
        return await asyncio.to_thread(self._plan_each, list(zip(given, found, strict=True)))

    def _plan_each(self, given: Sequence[tuple[LessonSignal, Lookup]]) -> list[Planned]:
        planned = list[Planned]()
        for signal, found in given:
            try:
                planned.append(Planned(signal, found, self._plan(signal, found)))
            except Exception:  # one signal's border
                logger.exception("signal %s could not be planned", signal.id)
        return planned

    def _plan(self, signal: LessonSignal, found: Lookup) -> LessonPlan | Refusal:
        policy = self._policy
        if found.private:
            policy = policy.model_copy(update={"private_contexts": frozenset({signal.context})})
        return plan(
            signal,
            None if found.turn is None else turn_of(found.turn, context_tokens=self._context_tokens),
            policy=policy,
            tokenizer=self._chat,
            context_tokens=self._context_tokens,
            relevance=found.relevance,
            outcome=found.outcome,
        )


def write_planned(session: Session, planned: Sequence[Planned]) -> int:
    """Write what planning made of signals; when its lessons were planned, in microseconds."""
    refused, kept = list[RefusedSignal](), list[PlannedLesson]()
    for one in planned:
        if isinstance(one.outcome, Refusal):
            refused.append(refused_signal(one.signal.id, one.outcome))
        else:
            links = tuple(Link(signal, Role.MAKES) for signal in one.outcome.signals)
            kept.append(PlannedLesson(stored_lesson(one.outcome, identity=one.lesson), links))
    signals.refuse_signals(session, refused)
    return lessons.plan_lessons(session, kept)


def settle_about_others(session: Session, given: Sequence[Relevance | Verdict], policy: Policy) -> None:
    """Apply or refuse signals about others that were just put. One that comes before its engram is remembered."""
    engrams = {signal.engram for signal in given if isinstance(signal, Relevance)}
    standing = signals.states_of(session, engrams)
    refusals = {signal.id: _refusal_of(signal, standing, policy) for signal in given}
    refused = [refused_signal(identity, why) for identity, why in refusals.items() if why is not None]
    signals.refuse_signals(session, refused)
    signals.apply_signals(session, [identity for identity, why in refusals.items() if why is None])


def _refusal_of(signal: Relevance | Verdict, standing: dict[str, SignalState], policy: Policy) -> Refusal | None:
    if not policy.learns(signal.agent):
        return policy_off(signal.agent)
    ridden = {SignalState.RIDING, SignalState.LEARNED}
    if isinstance(signal, Relevance) and standing.get(signal.engram) in ridden:
        message = f"The lesson of engram {signal.engram} has ridden; its weight can no longer change."
        return Refusal(code=RefusalCode.SUPERSEDED, message=message)
    return None


def refused_signal(signal: str, why: Refusal) -> RefusedSignal:
    """A refusal as the store takes it."""
    return RefusedSignal(signal, why.code, why.message, why.position)


def _lesson_signal(body: dict[str, object]) -> LessonSignal:
    signal = parse_signal(body)
    assert not isinstance(signal, Relevance | Verdict), f"a {signal.kind} makes no lesson"
    return signal


def _reweigh(session: Session, weighed: Sequence[tuple[str, tuple[float, ...], str]]) -> None:
    for lesson, weights, signal in weighed:
        lessons.reweigh_lesson(session, lesson, weights=weights, signal=signal)
