"""Scopes: what a signal, a context or an agent comes to in each table, where it is to be forgotten.

* A context's, or an agent's, are its turns, the signals it sent or that speak of those turns, and their lessons.
* A lesson is forgotten with all the signals that make it. Where only some are, it is shared, and they are parted.
* What is forgotten already is not found again.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, exists, or_, select, type_coerce
from sqlalchemy.orm import InstrumentedAttribute, Session

from store.errors import CannotForget, Unknown
from store.lessons import makers_of
from store.rows import existing
from store.tables import LessonSignalTable, LessonTable, SignalTable, StepTable, TurnTable
from store.words import LessonState, Role

FORGOTTEN = "forgotten"
"""The code of what is forgotten."""

_ALIVE = (LessonState.PLANNED, LessonState.RIDING, LessonState.LEARNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is to be forgotten: a signal; a context, of one agent or of all; or an agent."""

    signal: str | None = None
    context: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        alone = self.signal is None or (self.context is None and self.agent is None)
        assert alone, f"{self} is more than a signal"
        assert (self.signal, self.context, self.agent) != (None, None, None), "nothing is named"

    @property
    def kind(self) -> str:
        """The word for it."""
        return "signal" if self.signal is not None else "context" if self.context is not None else "agent"

    @property
    def subject(self) -> str:
        """Its id or its name."""
        named = (self.signal, self.context, self.agent)
        return next(name for name in named if name is not None)


@dataclass(frozen=True, slots=True)
class Shared:
    """A lesson that waits or was learned, and those of the signals that make it which are to be forgotten."""

    lesson: str
    gone: tuple[str, ...]
    step: str | None
    """The step it was learned in."""


@dataclass(frozen=True, slots=True)
class Found:
    """The ids of what is to be forgotten of one agent's, in each table; steps in their order."""

    agent: str
    turns: tuple[str, ...]
    signals: tuple[str, ...]
    lessons: tuple[str, ...]
    steps: tuple[str, ...]
    shared: tuple[Shared, ...]

    @property
    def is_nothing(self) -> bool:
        """Is nothing left of it?"""
        return not (self.turns or self.signals or self.lessons or self.steps or self.shared)


def find(session: Session, scope: Scope) -> list[Found]:
    """What there is to forget, by agent; nothing of it is forgotten already.

    Raises `Unknown` when there is no such thing, and `CannotForget` when others were weighed by it.
    """
    if scope.signal is not None:
        _require_not_weighing(session, scope.signal)
    of_signals, of_turns = _conditions(scope)
    agents = {*session.scalars(select(SignalTable.agent).where(of_signals))}
    agents |= {*session.scalars(select(TurnTable.agent).where(of_turns))}
    if not agents:
        raise Unknown(scope.kind, scope.subject)
    found = [_find_of(session, agent, of_signals, of_turns) for agent in sorted(agents)]
    return [each for each in found if not each.is_nothing]


def _conditions(scope: Scope) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Which signals and which turns are of the scope."""
    if scope.signal is not None:
        return SignalTable.id == scope.signal, TurnTable.id.is_(None)
    of_turns = [TurnTable.context == scope.context] if scope.context is not None else []
    of_turns += [TurnTable.agent == scope.agent] if scope.agent is not None else []
    of_signals = [SignalTable.context == scope.context] if scope.context is not None else []
    of_signals += [SignalTable.agent == scope.agent] if scope.agent is not None else []
    about = exists().where(TurnTable.id == SignalTable.turn, TurnTable.agent == SignalTable.agent, *of_turns)
    turns = of_turns[0] if len(of_turns) == 1 else of_turns[0] & of_turns[1]
    signals = of_signals[0] if len(of_signals) == 1 else of_signals[0] & of_signals[1]
    return or_(signals, about), turns


def _find_of(
    session: Session, agent: str, of_signals: ColumnElement[bool], of_turns: ColumnElement[bool]
) -> Found:
    turns = select(TurnTable.id).where(TurnTable.agent == agent, of_turns)
    signals = select(SignalTable.id).where(SignalTable.agent == agent, of_signals)
    lessons, shared = _lessons(session, agent, turns, signals)
    worded = or_(TurnTable.prompt_tokens.is_not(None), _has(TurnTable.messages))
    untold = select(LessonTable.id).where(LessonTable.agent == agent, _open(LessonTable.code))
    taken = select(StepTable.id, StepTable.lesson).where(StepTable.agent == agent, ~StepTable.forgotten)
    return Found(
        agent=agent,
        turns=tuple(session.scalars(turns.where(worded))),
        signals=tuple(session.scalars(signals.where(or_(_open(SignalTable.code), _has(SignalTable.body))))),
        lessons=tuple(lesson for lesson in session.scalars(untold) if lesson in lessons),
        steps=tuple(
            step for step, lesson in session.execute(taken.order_by(StepTable.number)) if lesson in lessons
        ),
        shared=tuple(shared),
    )


def _lessons(
    session: Session, agent: str, turns: Select[str], signals: Select[str]
) -> tuple[set[str], list[Shared]]:
    """The lessons of those turns and signals, and those that others make too."""
    makes = (LessonSignalTable.role == Role.MAKES, LessonSignalTable.signal.in_(signals))
    made = set(session.scalars(select(LessonSignalTable.lesson).where(*makes)))
    whole = set(session.scalars(select(LessonTable.id).where(LessonTable.turn.in_(turns))))
    whole |= _taken_in(session, agent, made)
    gone, shared = set(session.scalars(signals)), []
    for lesson in sorted(made - whole):
        makers = makers_of(session, lesson)
        some = tuple(maker for maker in makers if maker in gone)
        if some == makers or existing(session, LessonTable, lesson).state not in _ALIVE:
            whole.add(lesson)
        else:
            step = session.scalar(select(StepTable.id).where(StepTable.lesson == lesson))
            shared.append(Shared(lesson, some, step))
    return whole, shared


def _taken_in(session: Session, agent: str, lessons: set[str]) -> set[str]:
    """Lessons of the same turns that no signal makes any more, since others took them in: they are text alone."""
    makes = exists().where(LessonSignalTable.lesson == LessonTable.id, LessonSignalTable.role == Role.MAKES)
    mine = select(LessonTable.id, LessonTable.turn, makes).where(LessonTable.agent == agent)
    rows = session.execute(mine).all()
    turns = {turn for lesson, turn, _ in rows if lesson in lessons}
    return {lesson for lesson, turn, is_made in rows if turn in turns and not is_made}


def _open(code: InstrumentedAttribute[str | None]) -> ColumnElement[bool]:
    """Is it not forgotten yet?"""
    return or_(code.is_(None), code != FORGOTTEN)


def _has(column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Is there any JSON in it?"""
    return type_coerce(column, Text).is_not(None)


def _require_not_weighing(session: Session, signal: str) -> None:
    existing(session, SignalTable, signal)
    weighed = select(LessonSignalTable.lesson).join(LessonTable, LessonTable.id == LessonSignalTable.lesson)
    mine = (
        LessonSignalTable.signal == signal,
        LessonSignalTable.role != Role.MAKES,
        LessonTable.state.in_(_ALIVE),
    )
    lesson = session.scalar(weighed.where(*mine).limit(1))
    if lesson is not None:
        makers = ", ".join(makers_of(session, lesson))
        raise CannotForget(
            f"signal {signal!r} says how much others weigh, and holds nothing that was learned: forget what it "
            f"weighs ({makers}), or their context"
        )
