"""Gathering: lessons planned one by one, brought together with each other and with those that wait. Pure.

- Engrams that overlap in one turn are one lesson: a new one joins the oldest that waits, which takes in the
  others. Those that wait for a verdict keep to themselves.
- A later correction of the same reply takes the place of one that has not ridden.
- What one lesson may have in tokens, it has no more when it is brought together with others.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from daemon.learning.lookups import Lookup
from daemon.learning.records import plan_of
from daemon.learning.rides import Pending
from signals.merging import merge, merged_with
from signals.planning import awaits_verdict
from signals.plans import LessonPlan
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal


@dataclass(frozen=True, slots=True)
class Planned:
    """A signal, what was known of it, and what planning made of that."""

    signal: LessonSignal
    found: Lookup
    outcome: LessonPlan | Refusal


@dataclass(slots=True)
class Shape:
    """A lesson as it is to be: new, or one that waits and changes."""

    id: str
    plan: LessonPlan
    awaits: bool
    """Does it wait for a verdict?"""
    pending: Pending | None = None
    makers: list[Planned] = field(default_factory=list)
    """The signals that make it from now on, and made nothing before."""
    takes_in: list[Pending] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What signals come to: those refused, lessons that wait no more, and those that are new or change."""

    refused: dict[str, Refusal]
    superseded: list[tuple[Pending, Refusal]]
    shapes: list[Shape]


Waiting = Callable[[str], Iterable[Pending]]
"""The lessons about a turn that wait."""


def gather(planned: Sequence[Planned], waiting: Waiting, *, max_tokens: Mapping[str, int]) -> Gathered:
    """Bring together what was planned, in the order given; `max_tokens` is by agent."""
    gathered = Gathered({}, [], [])
    by_turn: dict[str, list[Shape]] = {}
    for one in planned:
        plan = one.outcome
        if isinstance(plan, Refusal):
            gathered.refused[one.signal.id] = plan
            continue
        if plan.turn not in by_turn:
            by_turn[plan.turn] = [_waiting(pending) for pending in waiting(plan.turn)]
        made = Shape(f"lesson-{uuid.uuid4().hex}", plan, awaits_verdict(one.signal), makers=[one])
        others = by_turn[plan.turn]
        if plan.kind == "correction":
            _supersede(made, others, gathered)
        _place(made, others, max_tokens=max_tokens[one.signal.agent])
    gathered.shapes.extend(shape for shapes in by_turn.values() for shape in shapes if shape.makers)
    return gathered


def _waiting(pending: Pending) -> Shape:
    return Shape(pending.id, plan_of(pending), pending.awaits, pending)


def _supersede(correction: Shape, others: list[Shape], gathered: Gathered) -> None:
    """Take away the corrections of the same reply."""
    plan = correction.plan
    why = Refusal(
        code=RefusalCode.SUPERSEDED,
        message=f"Correction {plan.signals[0]} of the same reply came before this one had ridden, and is learned "
        "in its place.",
    )
    for shape in [one for one in others if one.plan.kind == "correction" and one.plan.prefix == plan.prefix]:
        others.remove(shape)
        gathered.refused.update({one.signal.id: why for one in shape.makers})
        if shape.pending is not None:
            gathered.superseded.append((shape.pending, why))


def _place(made: Shape, others: list[Shape], *, max_tokens: int) -> None:
    """Put a new lesson beside the others, the oldest first, or into those that it overlaps."""
    alike = {shape.id: shape for shape in others if shape.awaits == made.awaits}
    plans = {identity: shape.plan for identity, shape in alike.items()}
    chosen = [alike[identity] for identity in merged_with(made.plan, plans, max_tokens=max_tokens)]
    if not chosen:
        others.append(made)
        return
    target, *rest = chosen
    for shape in rest:
        others.remove(shape)
    for shape in [made, *rest]:
        target.plan = merge([target.plan, shape.plan])
        target.makers += shape.makers
        target.takes_in += [*shape.takes_in, *([] if shape.pending is None else [shape.pending])]
