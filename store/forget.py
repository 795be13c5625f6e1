"""Forgetting: what is known of one signal, of a context or of an agent, taken out of every table but the ledger.

* The ledger keeps its rows, which hold no text, and gets one that says what was forgotten.
* Rows stay, with their counts and times, and say nothing any more: a forgotten signal's id is taken for good.
* Signals and lessons end as refused, with the code `forgotten`. A step is marked, and leaves its shadow as it was.
* A lesson that others make too goes on as theirs; where it could not be told apart, it ends, and so do they.
* The adapters that are put in place were rebuilt without what is forgotten, all in the same transaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from store import leases, ledger
from store.columns import JsonValue
from store.errors import MovedOn
from store.lessons import end_ride, makers_of, refuse_lesson
from store.records import Entry, KeptStep, Lesson, RefusedSignal
from store.reshaping import give_up_signal
from store.rows import existing
from store.scopes import FORGOTTEN, Found, Scope, Shared, find
from store.steps import learned_tokens
from store.tables import (
    AdapterTable,
    LessonSignalTable,
    LessonTable,
    SignalTable,
    StepTable,
    TurnTable,
)
from store.words import LedgerKind, LessonState, SignalState

_ENDED = "It is forgotten: what was learned of it is in no adapter any more, and its text is erased."
_WITH_ANOTHER = (
    "It was one lesson with signal {gone}, which is forgotten, and the two could not be told apart: what was "
    "learned of it is in no adapter any more. Send it again under another id."
)
_FORGOTTEN_SIGNAL = {
    "body": None,
    "state": SignalState.REFUSED,
    "code": FORGOTTEN,
    "message": _ENDED,
    "position": None,
}
_ERASED_TURN = dict.fromkeys(("messages", "template_args", "prompt_tokens", "reply_tokens", "reply_text"))
MOST_IDS = 1_000
"""Ids in a statement: the strictest of the databases' limits is many times that."""

_MOVED_ON = "meanwhile something was learned, promoted or rolled back: nothing was forgotten; ask again"
_NOTHING: dict[str, JsonValue] = {"slot": 0, "runs": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedStep:
    """What a step is, now that it was taken again without what is forgotten, or is forgotten itself."""

    id: str
    shadow_before: str
    shadow_after: str
    snapshot: str
    loss_before: float | None = None
    row_losses_before: tuple[float | None, ...] = ()
    kl_served: float | None = None
    gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A rebuilt shadow: its hash, its snapshot and its last step."""

    sha: str
    snapshot: str
    step_number: int


@dataclass(frozen=True, slots=True)
class Moved:
    """An agent's steps and adapters as they are without what is forgotten; the head's version is None.

    `exact`: on the machine that had learned it.
    """

    steps: tuple[MovedStep, ...]
    adapters: Mapping[int | None, Place]
    exact: bool
    head_before: str
    """The shadow that it was prepared for."""


@dataclass(frozen=True, slots=True)
class Parted:
    """A shared lesson as the other signals alone make it, and its step, not yet taken again, if it has one."""

    shared: Shared
    lesson: Lesson
    step: KeptStep | None


@dataclass(frozen=True, slots=True)
class Change:
    """All that there is to change of one agent's. `moved` is None where nothing was learned from it."""

    found: Found
    parted: tuple[Parted, ...]
    dropped: tuple[Shared, ...]
    """Shared lessons that could not be told apart; those that were learned are left out of the steps."""
    moved: Moved | None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The steps that are in no adapter any more."""
        return (*self.found.steps, *(each.step for each in self.dropped if each.step is not None))


def forget(session: Session, scope: Scope, changes: Sequence[Change]) -> None:
    """Forget what is of that scope, by agent, as it was prepared; each is told in the ledger.

    Turns and signals that came meanwhile are forgotten too. Raises `MovedOn` when what was learned, or an adapter,
    is not as it was when it was prepared, and `Elsewhere` when an agent belongs to another lane.
    """
    now = {found.agent: found for found in find(session, scope)}
    for change in changes:
        found = now.pop(change.found.agent, None)
        if found is None or not _still_holds(session, change, found):
            raise MovedOn(_MOVED_ON)
        leases.require(session, found.agent)
        _forget(session, scope, replace(change, found=found))
    if now:
        raise MovedOn(_MOVED_ON)


def _still_holds(session: Session, change: Change, found: Found) -> bool:
    """Is what was prepared still what is to be done?"""
    if (found.steps, found.shared) != (change.found.steps, change.found.shared):
        return False
    if change.moved is None:
        return True
    agent = found.agent
    steps = {*session.scalars(select(StepTable.id).where(StepTable.agent == agent))}
    versions = {*session.scalars(select(AdapterTable.version).where(AdapterTable.agent == agent))}
    as_prepared = {step.id for step in change.moved.steps}, change.moved.adapters.keys(), change.moved.head_before
    now: tuple[object, ...] = steps, versions, _head_sha(session, agent)
    return now == as_prepared


def _forget(session: Session, scope: Scope, what: Change) -> None:
    """Erase what was found of one agent's, put her rebuilt adapters in place, and tell it in the ledger."""
    found, before = what.found, _head_sha(session, what.found.agent)
    for parted in what.parted:
        _part(session, parted)
    for shared in what.dropped:
        _drop(session, shared)
    for lesson in found.lessons:
        _forget_lesson(session, lesson)
    for signals in _some_at_a_time(found.signals):
        session.execute(update(SignalTable).where(SignalTable.id.in_(signals)).values(_FORGOTTEN_SIGNAL))
    for turns in _some_at_a_time(found.turns):
        session.execute(update(TurnTable).where(TurnTable.id.in_(turns)).values(_ERASED_TURN))
    for step in what.left_out:
        _erase_step(existing(session, StepTable, step))
    session.flush()
    versions = {} if what.moved is None else _move(session, found.agent, what.moved)
    told: dict[str, JsonValue] = {
        "asked": scope.kind,
        **counts(what),
        "exact": what.moved is None or what.moved.exact,
        "shadow_before": before,
        "shadow_after": _head_sha(session, found.agent),
        "versions": versions,
    }
    entry = Entry(
        kind=LedgerKind.FORGOT, agent=found.agent, context=scope.context, subject=scope.subject, body=told
    )
    ledger.append(session, entry)


def counts(what: Change) -> dict[str, JsonValue]:
    """How much of each there was, as the ledger tells it."""
    rebuilt = 0 if what.moved is None else len(what.moved.steps) - len(what.left_out)
    return {
        "turns": len(what.found.turns),
        "signals": len(what.found.signals),
        "lessons": len(what.found.lessons) + len(what.dropped),
        "lessons_parted": len(what.parted),
        "lessons_dropped": len(what.dropped),
        "steps_left_out": len(what.left_out),
        "steps_rebuilt": rebuilt,
    }


def _part(session: Session, parted: Parted) -> None:
    """Have a lesson go on as the others' alone."""
    if parted.step is not None:
        _part_learned(session, parted, parted.step)
        return
    end_ride(session, parted.lesson.id)
    for signal in parted.shared.gone:
        give_up_signal(session, parted.lesson, RefusedSignal(signal, FORGOTTEN, _ENDED))


def _part_learned(session: Session, parted: Parted, kept: KeptStep) -> None:
    lesson, row = parted.lesson, existing(session, StepTable, kept.step.id)
    for each in (existing(session, LessonTable, lesson.id), row):
        each.prefix_token_count, each.tokens = lesson.prefix_token_count, lesson.tokens
        each.targets, each.weights = lesson.targets, lesson.weights
    row.signals, row.served, row.chunk_rows = [*kept.signals], dict(kept.step.served), kept.step.chunk_rows
    row.learned_token_count = learned_tokens(lesson.targets, lesson.weights)
    for signal in parted.shared.gone:
        existing(session, SignalTable, signal).lesson = None
        session.delete(session.get_one(LessonSignalTable, (lesson.id, signal)))


def _drop(session: Session, shared: Shared) -> None:
    """End a lesson that could not be told apart. The other signals keep their text, and say why."""
    others = [maker for maker in makers_of(session, shared.lesson) if maker not in shared.gone]
    _forget_lesson(session, shared.lesson)
    for other in others:
        row = existing(session, SignalTable, other)
        row.state, row.code, row.position = SignalState.REFUSED, FORGOTTEN, None
        row.message = _WITH_ANOTHER.format(gone=", ".join(shared.gone))


def _forget_lesson(session: Session, identity: str) -> None:
    """A lesson that waits is refused, as any other; then, whatever became of it, nothing of it is left."""
    row = existing(session, LessonTable, identity)
    if row.state in {LessonState.PLANNED, LessonState.RIDING}:
        refuse_lesson(session, identity, code=FORGOTTEN, message=_ENDED)
    row.state, row.code, row.message, row.position = LessonState.REFUSED, FORGOTTEN, _ENDED, None
    row.tokens, row.targets, row.weights = _blank(len(row.tokens))


def _erase_step(row: StepTable) -> None:
    rows = len(row.tokens)
    row.tokens, row.targets, row.weights = _blank(rows)
    row.row_losses_before, row.row_losses_after = (None,) * rows, None
    row.served, row.forgotten = dict(_NOTHING), True


def _some_at_a_time(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids in pieces: a statement takes so many and no more."""
    return (ids[start : start + MOST_IDS] for start in range(0, len(ids), MOST_IDS))


def _blank(rows: int) -> tuple[tuple[int, ...], tuple[int | None, ...], tuple[float, ...]]:
    """Tokens, targets and weights of as many rows, which say nothing."""
    return (0,) * rows, (None,) * rows, (0.0,) * rows


def _move(session: Session, agent: str, moved: Moved) -> dict[str, JsonValue]:
    """Put steps and adapters where they are now; what became of each version, as the ledger tells it."""
    for step in moved.steps:
        row = existing(session, StepTable, step.id)
        row.shadow_before, row.shadow_after, row.snapshot = step.shadow_before, step.shadow_after, step.snapshot
        if not row.forgotten and step.loss_before is not None and step.gradient_norm is not None:
            row.loss_before, row.gradient_norm, row.kl_served = (
                step.loss_before,
                step.gradient_norm,
                step.kl_served,
            )
            row.row_losses_before, row.loss_after, row.row_losses_after = step.row_losses_before, None, None
    told: dict[str, JsonValue] = {}
    for adapter in session.scalars(select(AdapterTable).where(AdapterTable.agent == agent)):
        place = moved.adapters[adapter.version]
        if adapter.version is not None and adapter.sha != place.sha:
            told[str(adapter.version)] = {"before": adapter.sha, "after": place.sha}
        adapter.sha, adapter.snapshot, adapter.step_number = place.sha, place.snapshot, place.step_number
    session.flush()
    return told


def _head_sha(session: Session, agent: str) -> str | None:
    mine = select(AdapterTable.sha).where(AdapterTable.agent == agent, AdapterTable.version.is_(None))
    return session.scalar(mine)
