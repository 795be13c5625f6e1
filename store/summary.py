"""What the tables add up to, in all and for each agent: turns, signals, lessons, steps, refusals, adapters.

* Everything is counted by the database, from indexes that hold all that is asked: a row is never read for it.
* All of it is of one state of the database, that of the session.
* `since` and `until` bound turns by their beginning, signals by their arrival, lessons by their planning, and
  steps by their commit. Adapters are as they stand now.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVarTuple

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from store.records import KeptStep
from store.steps import step_of
from store.tables import AdapterTable, LedgerTable, LessonTable, SignalTable, StepTable, TurnTable
from store.words import AdapterState, LessonState, SignalState

Ts = TypeVarTuple("Ts")

POINTS = 200
"""Points of an agent's series: more than a chart on a page can show apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Whose facts, and from when; None lets everything through. `since_us` is included and `until_us` is not."""

    agent: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(slots=True)
class Facts:
    """What is counted. `refused_lessons` and `refusals` are the refused lessons and signals by their code."""

    turns: int = 0
    signals: Counter[SignalState] = field(default_factory=Counter)
    lessons: Counter[LessonState] = field(default_factory=Counter)
    refused_lessons: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    learned_tokens: int = 0
    learning_ms: float = 0.0
    waited_ms: float = 0.0

    def add(self, other: "Facts") -> None:
        """Add another's to these."""
        self.turns += other.turns
        self.signals += other.signals
        self.lessons += other.lessons
        self.refused_lessons += other.refused_lessons
        self.refusals += other.refusals
        self.steps += other.steps
        self.learned_tokens += other.learned_tokens
        self.learning_ms += other.learning_ms
        self.waited_ms += other.waited_ms


@dataclass(frozen=True, slots=True)
class Point:
    """The mean loss of `steps` neighbouring steps before they were taken; number and time are the last one's.

    `loss_after` is the mean of those that were measured; None where none was.
    """

    number: int
    steps: int
    at_us: int
    loss_before: float
    loss_after: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The version an agent is served with and the step it was made at, and the step her shadow is at."""

    stable_version: int
    stable_step: int
    shadow_step: int


@dataclass(slots=True)
class AgentSummary:
    """One agent's. The series is the oldest first, of at most `POINTS` points."""

    facts: Facts = field(default_factory=Facts)
    adapter: Standing | None = None
    last_step: KeptStep | None = None
    losses: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    """Everyone's, by name, and their sum. The seqs are the first and last rows that the ledger holds now."""

    first_seq: int | None
    last_seq: int | None
    totals: Facts
    agents: Mapping[str, AgentSummary]


def summarise(session: Session, span: Span) -> Summary:
    """Add everything up."""
    agents: defaultdict[str, AgentSummary] = defaultdict(AgentSummary)
    _count_turns(session, span, agents)
    _count_signals(session, span, agents)
    _count_lessons(session, span, agents)
    _add_steps(session, span, agents)
    for agent, points in _series(session, span):
        agents[agent].losses.append(points)
    for agent, standing in _standings(session, span.agent):
        agents[agent].adapter = standing
    totals = Facts()
    for own in agents.values():
        totals.add(own.facts)
    first, last = (session.scalar(select(end(LedgerTable.seq))) for end in (func.min, func.max))
    return Summary(first, last, totals, {agent: agents[agent] for agent in sorted(agents)})


def _within(
    query: Select[*Ts], span: Span, agent: InstrumentedAttribute[str], at_us: InstrumentedAttribute[int]
) -> Select[*Ts]:
    """The query, of that span only."""
    wanted = [] if span.agent is None else [agent == span.agent]
    wanted += [] if span.since_us is None else [at_us >= span.since_us]
    wanted += [] if span.until_us is None else [at_us < span.until_us]
    return query.where(*wanted)


def _count_turns(session: Session, span: Span, agents: Mapping[str, AgentSummary]) -> None:
    counted = select(TurnTable.agent, func.count()).group_by(TurnTable.agent)
    for agent, count in session.execute(_within(counted, span, TurnTable.agent, TurnTable.created_at_us)):
        agents[agent].facts.turns = count


def _count_signals(session: Session, span: Span, agents: Mapping[str, AgentSummary]) -> None:
    kinds = (SignalTable.agent, SignalTable.state, SignalTable.code)
    counted = select(*kinds, func.count()).group_by(*kinds)
    for agent, state, code, count in session.execute(_within(counted, span, kinds[0], SignalTable.received_at_us)):
        agents[agent].facts.signals[state] += count
        if state is SignalState.REFUSED and code is not None:
            agents[agent].facts.refusals[code] += count


def _count_lessons(session: Session, span: Span, agents: Mapping[str, AgentSummary]) -> None:
    kinds = (LessonTable.agent, LessonTable.state, LessonTable.code)
    counted = select(*kinds, func.count()).group_by(*kinds)
    for agent, state, code, count in session.execute(_within(counted, span, kinds[0], LessonTable.planned_at_us)):
        agents[agent].facts.lessons[state] += count
        if state is LessonState.REFUSED and code is not None:
            agents[agent].facts.refused_lessons[code] += count


def _add_steps(session: Session, span: Span, agents: Mapping[str, AgentSummary]) -> None:
    tokens_sum, learning_sum = func.sum(StepTable.learned_token_count), func.sum(StepTable.learning_ms)
    sums = (func.max(StepTable.number), tokens_sum, learning_sum, func.sum(StepTable.waited_ms))
    added = select(StepTable.agent, func.count(), *sums).group_by(StepTable.agent)
    rows = session.execute(_within(added, span, StepTable.agent, StepTable.created_at_us)).all()
    for agent, count, number, tokens, learning_ms, waited_ms in rows:
        own = agents[agent]
        own.facts.steps, own.facts.learned_tokens = count, int(tokens)
        own.facts.learning_ms, own.facts.waited_ms = learning_ms, waited_ms
        own.last_step = _step(session, agent, number)


def _step(session: Session, agent: str, number: int) -> KeptStep:
    named = select(StepTable.id).where(StepTable.agent == agent, StepTable.number == number)
    return step_of(session, session.execute(named).scalar_one())


def _series(session: Session, span: Span) -> Iterator[tuple[str, Point]]:
    """Each agent's points, in order: her steps in `POINTS` runs of one length, or a point each when fewer."""
    run = func.ntile(POINTS).over(partition_by=StepTable.agent, order_by=StepTable.number).label("run")
    losses = (StepTable.loss_before, StepTable.loss_after)
    steps = select(StepTable.agent, StepTable.number, StepTable.created_at_us, *losses, run)
    runs = _within(steps, span, StepTable.agent, StepTable.created_at_us).subquery()
    own = runs.c
    means = (func.avg(own.loss_before), func.avg(own.loss_after))
    point = (func.max(own.number), func.count(), func.max(own.created_at_us), *means)
    for agent, *facts in session.execute(
        select(own.agent, *point).group_by(own.agent, own.run).order_by(own.agent, own.run)
    ):
        yield agent, Point(*facts)


def _standings(session: Session, agent: str | None) -> Iterator[tuple[str, Standing]]:
    columns = (AdapterTable.agent, AdapterTable.state, AdapterTable.version, AdapterTable.step_number)
    heads = select(*columns).where(AdapterTable.state != AdapterState.KEPT)
    found = session.execute(heads if agent is None else heads.where(AdapterTable.agent == agent)).all()
    shadows = {row.agent: row.step_number for row in found if row.state is AdapterState.SHADOW}
    for row in found:
        if row.state is AdapterState.STABLE:
            yield row.agent, Standing(row.version, row.step_number, shadows[row.agent])
