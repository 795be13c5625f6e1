"""Settling: signals that are on disk are planned into lessons, applied, or refused, many in a few transactions.

- Relevances and verdicts end as they are put, or here if another lane took them; what they concern is weighed anew
  here.
- Planning reads in one transaction and is written in another. Nobody else settles in between (`Intake` sees to
  that), so that what is told about a signal is never lost between two looks.
- One signal that cannot be settled takes no other with it: it is logged, and taken up again at the next start.
"""

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy.orm import Session

from daemon.learning.adapters import AgentAdapters
from daemon.learning.changes import Change, change_of, write_changes
from daemon.learning.gathering import Gathered, Planned, Shape, gather
from daemon.learning.learner import Learner
from daemon.learning.lookups import look_up
from daemon.learning.planner import Planner
from daemon.learning.policies import Policies
from daemon.learning.records import lesson_signal, refused_signal, stored_lesson, waiting_of
from daemon.learning.rides import Pending, Rides
from signals.policy import Policy, policy_off
from signals.records import Outcome, Relevance, Signal, Verdict
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal
from store import lessons, reshaping, signals
from store.records import Link, PlannedLesson
from store.store import Store
from store.words import Role, SignalState

logger = logging.getLogger(__name__)


class Settling:
    """Settles signals that are on disk. One caller at a time."""

    def __init__(
        self,
        store: Store,
        rides: Rides,
        adapters: AgentAdapters,
        learner: Learner,
        planner: Planner,
        *,
        policies: Policies,
        started_at_us: int,
    ) -> None:
        self._store = store
        self._rides = rides
        self._adapters = adapters
        self._learner = learner
        self._planner = planner
        self._policies = policies
        self._started_at_us = started_at_us

    async def settle(self, given: Sequence[Signal]) -> None:
        """Settle signals. Those that are settled already stay as they are; what these concern is weighed anew."""
        standing = await self._store.read(signals.states_of, [signal.id for signal in given])
        received = [signal for signal in given if standing.get(signal.id) is SignalState.RECEIVED]
        about_others = [signal for signal in received if isinstance(signal, Relevance | Verdict)]
        if about_others:
            await self._store.write(settle_about_others, about_others, self._policies.now)
        makers = [signal for signal in received if not isinstance(signal, Relevance | Verdict)]
        new = await self._plan_new(makers)
        concerned = {pending.id: pending for signal in given for pending in self._concerned(signal)}
        await self.weigh_anew([pending for pending in concerned.values() if pending.id not in new])

    async def weigh_anew(self, waiting: Sequence[Pending]) -> None:
        """Weigh waiting lessons anew, or refuse them, by what is known now. Riding is too late."""
        if not waiting:
            return
        ids = [signal for pending in waiting for signal in pending.signals]
        bodies = [kept.signal.body for kept in await self._store.read(signals.signals_of, ids)]
        planned = await self._planned([lesson_signal(body) for body in bodies if body is not None])
        by_signal = {one.signal.id: one for one in planned}
        changes = [
            change_of(pending, [by_signal[signal] for signal in pending.signals])
            for pending in waiting
            if pending.id in self._rides and not pending.riding and by_signal.keys() >= set(pending.signals)
        ]
        await self._change(changes)

    def concerns(self, signal: Signal) -> bool:
        """Is there a lesson that a signal about others concerns?"""
        return bool(self._concerned(signal))

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
        most = {one.signal.agent: self._policies.of(one.signal.agent).max_lesson_tokens for one in planned}
        gathered = gather(planned, self._waiting, max_tokens=most)
        changing = [shape.pending for shape in gathered.shapes if shape.pending is not None]
        over = [pending for shape in gathered.shapes for pending in shape.takes_in]
        with self._rides.changing(changing, over=over):
            if gathered.superseded:
                await self._learner.refuse_all_waiting(gathered.superseded)
            return await self._keep(gathered)

    def _waiting(self, turn: str) -> list[Pending]:
        return [pending for pending in self._rides.about(turn) if not pending.riding]

    async def _keep(self, gathered: Gathered) -> set[str]:
        """Write what was gathered, and have its lessons wait; their ids."""
        try:
            at_us = await self._store.write(write_gathered, gathered)
            kept = gathered.shapes
        except Exception:  # the border of each: those that can be written are
            logger.exception("signals could not be settled together; each is by itself")
            at_us, kept = await self._write_each(gathered)
        await self._wait(kept, planned_at_us=at_us)
        return {shape.id for shape in kept}

    async def _write_each(self, gathered: Gathered) -> tuple[int, list[Shape]]:
        at_us, kept = 0, list[Shape]()
        parts = [Gathered({signal: why}, [], []) for signal, why in gathered.refused.items()]
        parts += [Gathered({}, [], [shape]) for shape in gathered.shapes]
        for part in parts:
            try:
                at_us = await self._store.write(write_gathered, part)
                kept += part.shapes
            except Exception:  # one lesson's border
                logger.exception("a signal or lesson could not be settled: %s", [*part.refused, *part.shapes])
        return at_us, kept

    async def _wait(self, kept: Sequence[Shape], *, planned_at_us: int) -> None:
        """The lessons wait for their rides."""
        stables = dict[tuple[str, str], str]()
        for shape in kept:
            if shape.pending is not None:
                self._rides.reshape(shape.pending, shape.plan)
                continue
            found = shape.makers[0].found
            turn = found.turn
            assert turn is not None, f"lesson {shape.id} was planned without a turn"
            served = (turn.lane, turn.adapter)
            if served not in stables:
                stables[served] = await self._adapters.lane_name(turn)
            pending = waiting_of(
                shape.plan,
                identity=shape.id,
                stable=stables[served],
                planned_at_us=planned_at_us,
                served_here=turn.lane == self._store.leases.lane and turn.created_at_us >= self._started_at_us,
                awaits=shape.awaits,
                held=shape.awaits and found.outcome is not Outcome.PASSED,
            )
            self._rides.add(pending)

    async def _change(self, changes: Sequence[Change]) -> None:
        """Have lessons that wait change, on disk and then in memory. Meanwhile they ride nothing."""
        refused = [(change.pending, change.refusal) for change in changes if change.refusal is not None]
        others = [change for change in changes if change.refusal is None and change.is_one]
        with self._rides.changing([change.pending for change in changes], over=()):
            if others:
                await self._store.write(write_changes, others)
            for change in changes:
                change.pending.awaits, change.pending.held = change.awaits, change.held
            for change in others:
                if change.plan is not None:
                    self._rides.reshape(change.pending, change.plan)
            if refused:
                await self._learner.refuse_all_waiting(refused)

    async def _planned(self, given: Sequence[LessonSignal]) -> list[Planned]:
        """Plan what can be planned, in the order given; on a thread, as it takes a while."""
        if not given:
            return []
        found = await self._store.read(look_up, given)
        return await asyncio.to_thread(self._planner.plan_each, list(zip(given, found, strict=True)))


def write_gathered(session: Session, gathered: Gathered) -> int:
    """Write what signals came to, lessons superseded left out; when its lessons were planned, in microseconds."""
    signals.refuse_signals(session, [refused_signal(*one) for one in gathered.refused.items()])
    new = [shape for shape in gathered.shapes if shape.pending is None]
    at_us = lessons.plan_lessons(
        session, [PlannedLesson(stored_lesson(shape.plan, identity=shape.id), _links(shape)) for shape in new]
    )
    for shape in gathered.shapes:
        if shape.pending is not None:
            lesson = stored_lesson(shape.plan, identity=shape.id)
            makers = [one.signal.id for one in shape.makers]
            takes_in = [pending.id for pending in shape.takes_in]
            reshaping.widen_lesson(
                session, lesson, makers=makers, takes_in=takes_in, weighed_by=_weighed_by(shape)
            )
    return at_us


def _links(shape: Shape) -> tuple[Link, ...]:
    makes = tuple(Link(one.signal.id, Role.MAKES) for one in shape.makers)
    makes += tuple(Link(signal, Role.WEIGHS) for signal in _weighed_by(shape))
    found = shape.makers[0].found
    if not shape.awaits or found.outcome is not Outcome.PASSED or found.judged_by is None:
        return makes
    return (*makes, Link(found.judged_by, Role.FREES))


def _weighed_by(shape: Shape) -> list[str]:
    return [one.found.weighed_by for one in shape.makers if one.found.weighed_by is not None]


def settle_about_others(session: Session, given: Sequence[Relevance | Verdict], policy: Policy) -> None:
    """Apply or refuse signals about others that another lane put."""
    ends = ends_of(session, given, policy)
    signals.refuse_signals(session, [why for why in ends.values() if why is not None])
    signals.apply_signals(session, [identity for identity, why in ends.items() if why is None])


def ends_of(session: Session, given: Sequence[Relevance | Verdict], policy: Policy) -> signals.Ends:
    """What signals about others come to, as they are put. One that comes before its engram is remembered."""
    engrams = {signal.engram for signal in given if isinstance(signal, Relevance)}
    standing = signals.states_of(session, engrams) if engrams else {}
    refusals = {signal.id: _refusal_of(signal, standing, policy) for signal in given}
    return {one: None if why is None else refused_signal(one, why) for one, why in refusals.items()}


def _refusal_of(signal: Relevance | Verdict, standing: dict[str, SignalState], policy: Policy) -> Refusal | None:
    if not policy.learns(signal.agent):
        return policy_off(signal.agent)
    ridden = {SignalState.RIDING, SignalState.LEARNED}
    if isinstance(signal, Relevance) and standing.get(signal.engram) in ridden:
        message = f"The lesson of engram {signal.engram} has ridden; its weight can no longer change."
        return Refusal(code=RefusalCode.SUPERSEDED, message=message)
    return None
