"""Steps: the commit that makes a lesson learned, and the record of what was learned.

* One transaction: the step, its lesson, the signals that make it, the agent's shadow and the ledger row are
  all there or none is. A crash before the commit leaves the lesson to be done again from the old shadow;
  after it, nothing is left to do. This is why no signal trains twice.
* A step follows the head: it was made from the shadow that the agent has now, or it is not kept.
"""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store import ledger
from store.adapters import shadow_row
from store.clock import now_us
from store.errors import AlreadyRecorded, DoesNotFollow
from store.lessons import makers_of, move_lesson
from store.records import Entry, KeptStep, Step
from store.rows import columns_of, existing, lesson_in, record_of
from store.tables import AdapterTable, LessonTable, StepTable, TurnTable
from store.words import LedgerKind, LessonState


def commit_step(session: Session, step: Step) -> KeptStep:
    """Keep a step, and with it everything that it makes true; the agent's first is number 1.

    Raises `AlreadyRecorded` when its id is taken, `Unknown` when the lesson or the agent's adapter is not there,
    `WrongState` when the lesson is not riding (learned, refused, or put back by a restart), and
    `DoesNotFollow` when the shadow has moved.
    """
    if session.get(StepTable, step.id) is not None:
        raise AlreadyRecorded("step", step.id)
    lesson = lesson_in(session, step.lesson, [LessonState.RIDING])
    head = shadow_row(session, lesson.agent)
    if step.shadow_before != head.sha:
        raise DoesNotFollow(agent=lesson.agent, given=step.shadow_before, head=head.sha)
    row = _new_row(session, step, lesson)
    session.add(row)
    move_lesson(session, lesson, LessonState.LEARNED)
    _move_head(head, row)
    session.flush()
    ledger.append(session, _told(row, lesson))
    return _kept(row)


def step_of(session: Session, step_id: str) -> KeptStep:
    """The step of that id. Raises `Unknown` when there is none."""
    return _kept(existing(session, StepTable, step_id))


def steps_of(session: Session, agent: str) -> list[KeptStep]:
    """Every step of the agent's, in order."""
    return [
        _kept(row)
        for row in session.scalars(select(StepTable).where(StepTable.agent == agent).order_by(StepTable.number))
    ]


def prefix_of(session: Session, step: KeptStep) -> tuple[int, ...]:
    """The tokens that the step's run came after."""
    turn = existing(session, TurnTable, step.prefix_turn)
    return ((turn.prompt_tokens or ()) + (turn.reply_tokens or ()))[: step.prefix_token_count]


def learned_tokens(targets: tuple[int | None, ...], weights: tuple[float, ...]) -> int:
    """Rows with a target and a weight: what a step's loss is of."""
    return sum(target is not None and weight > 0 for target, weight in zip(targets, weights, strict=True))


def step_of_lesson(session: Session, lesson: str) -> KeptStep | None:
    """The step that was taken with the lesson, if it is learned."""
    row = session.scalar(select(StepTable).where(StepTable.lesson == lesson))
    return None if row is None else _kept(row)


def last_steps(session: Session, *, agent: str, limit: int) -> list[KeptStep]:
    """The agent's newest steps, the newest first."""
    newest = select(StepTable).where(StepTable.agent == agent).order_by(StepTable.number.desc()).limit(limit)
    return [_kept(row) for row in session.scalars(newest)]


def _new_row(session: Session, step: Step, lesson: LessonTable) -> StepTable:
    last = session.scalar(select(func.max(StepTable.number)).where(StepTable.agent == lesson.agent))
    return StepTable(
        **columns_of(step),
        agent=lesson.agent,
        number=(last or 0) + 1,
        signals=list(makers_of(session, lesson.id)),
        prefix_turn=lesson.turn,
        prefix_token_count=lesson.prefix_token_count,
        tokens=lesson.tokens,
        targets=lesson.targets,
        weights=lesson.weights,
        stable=existing(session, TurnTable, lesson.turn).adapter,
        forgotten=False,
        learned_token_count=learned_tokens(lesson.targets, lesson.weights),
        created_at_us=now_us(),
    )


def _move_head(head: AdapterTable, step: StepTable) -> None:
    head.sha, head.snapshot, head.step_number = step.shadow_after, step.snapshot, step.number
    head.created_at_us = step.created_at_us


def _kept(row: StepTable) -> KeptStep:
    return record_of(KeptStep, row, step=record_of(Step, row), signals=tuple(row.signals))


def _told(row: StepTable, lesson: LessonTable) -> Entry:
    return Entry(
        kind=LedgerKind.STEP,
        agent=row.agent,
        context=lesson.context,
        subject=row.id,
        body={
            "number": row.number,
            "lesson": row.lesson,
            "signals": [*row.signals],
            "rows": len(row.tokens),
            "loss_before": row.loss_before,
            "loss_after": row.loss_after,
            "kl_served": row.kl_served,
            "gradient_norm": row.gradient_norm,
            "lr": row.lr,
            "shadow_before": row.shadow_before,
            "shadow_after": row.shadow_after,
            "snapshot": row.snapshot,
            "learning_ms": row.learning_ms,
            "waited_ms": row.waited_ms,
            "peak_bytes": row.peak_bytes,
        },
    )
