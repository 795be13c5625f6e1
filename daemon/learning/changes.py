"""What comes of a lesson that waits when its signals are planned anew: other weights, fewer signals, or an end."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from daemon.learning.gathering import Planned
from daemon.learning.records import refused_signal, stored_lesson
from daemon.learning.rides import Pending
from signals.merging import merge
from signals.planning import awaits_verdict
from signals.plans import LessonPlan
from signals.records import Outcome
from signals.refusals import Refusal
from store import lessons, reshaping


@dataclass(frozen=True, slots=True)
class Change:
    """How a lesson that waits is to be. Without a plan its rows stay as they are."""

    pending: Pending
    awaits: bool
    held: bool
    refusal: Refusal | None = None
    """Why it is no lesson any more."""
    plan: LessonPlan | None = None
    given_up: tuple[tuple[str, Refusal], ...] = ()
    """Signals that make it no more."""
    weighed_by: str | None = None
    freed_by: str | None = None

    @property
    def is_one(self) -> bool:
        """Is there anything to write?"""
        return self.plan is not None or self.freed_by is not None


def change_of(pending: Pending, planned: Sequence[Planned]) -> Change:
    """Compare a lesson that waits with what planning now makes of the signals that make it."""
    awaits, found = awaits_verdict(planned[0].signal), planned[0].found
    held = awaits and found.outcome is not Outcome.PASSED
    given_up = tuple((one.signal.id, one.outcome) for one in planned if isinstance(one.outcome, Refusal))
    plans = [one.outcome for one in planned if isinstance(one.outcome, LessonPlan)]
    if not plans:
        return Change(pending, awaits, held, refusal=given_up[0][1])
    plan = merge(plans)
    changes = bool(given_up) or plan.weights != pending.weights
    weighed_by = [one.found.weighed_by for one in planned if one.found.weighed_by is not None]
    return Change(
        pending,
        awaits,
        held,
        plan=plan if changes else None,
        given_up=given_up,
        weighed_by=weighed_by[-1] if weighed_by else None,
        freed_by=found.judged_by if pending.held and not held else None,
    )


def write_changes(session: Session, changes: Sequence[Change]) -> None:
    """Write how lessons that wait change."""
    for change in changes:
        if change.plan is not None:
            _write_plan(session, change, change.plan)
        if change.freed_by is not None:
            reshaping.free_lesson(session, change.pending.id, verdict=change.freed_by)


def _write_plan(session: Session, change: Change, plan: LessonPlan) -> None:
    lesson = stored_lesson(plan, identity=change.pending.id)
    for signal, why in change.given_up:
        reshaping.give_up_signal(session, lesson, refused_signal(signal, why))
    if not change.given_up:
        lessons.reweigh_lesson(session, lesson.id, weights=plan.weights, signal=change.weighed_by)
