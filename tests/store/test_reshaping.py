"""A lesson that waits takes in other signals and lessons, gives them up again, and is freed by a verdict."""

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from store import ledger
from store.chain import verify
from store.database import Database
from store.errors import WrongState
from store.lessons import begin_ride, lesson_of, makers_of, plan_lesson
from store.records import Link, RefusedSignal
from store.reshaping import free_lesson, give_up_signal, widen_lesson
from store.signals import apply_signal, put_signals, signal_of
from store.words import LedgerKind, LessonState, Role, SignalState
from tests.store.builders import a_lesson, a_signal, ready

WIDER = replace(a_lesson(), prefix_token_count=3, tokens=(13, 15), targets=(15, 21), weights=(1.0, 0.5))


def another(session: Session) -> None:
    """A second lesson that waits, made by signal s2, and a signal s3 that makes none yet."""
    put_signals(session, [a_signal("s2"), a_signal("s3")])
    plan_lesson(session, a_lesson("l2"), signals=[Link("s2", Role.MAKES)])


def test_a_lesson_takes_in_a_signal_and_another_lesson(database: Database) -> None:
    with database.write() as session:
        ready(session)
        another(session)
        widen_lesson(session, WIDER, makers=["s3"], takes_in=["l2"])
    with database.read() as session:
        kept, over = lesson_of(session, "l1"), lesson_of(session, "l2")
        assert (kept.lesson, kept.prefix) == (WIDER, (11, 12, 13))
        assert makers_of(session, "l1") == ("s1", "s2", "s3")
        assert (over.state, over.code, over.links) == (LessonState.REFUSED, "superseded", ())
        standing = [signal_of(session, name) for name in ("s1", "s2", "s3")]
        assert {(signal.state, signal.lesson) for signal in standing} == {(SignalState.PLANNED, "l1")}
        rows = ledger.page(session, ledger.Filter(kind=LedgerKind.LESSON), newest=True).rows
        assert {row.subject for row in rows[:2]} | {row.subject for row in rows[-2:]} == {"l1", "l2"}
        assert verify(session).why is None


def test_a_lesson_gives_up_one_of_its_signals_with_the_reason(database: Database) -> None:
    with database.write() as session:
        ready(session)
        another(session)
        widen_lesson(session, WIDER, makers=["s3"], takes_in=["l2"])
        give_up_signal(session, a_lesson(), RefusedSignal("s2", "failed_outcome", "it failed", 4))
    with database.read() as session:
        assert lesson_of(session, "l1").lesson == a_lesson()
        assert makers_of(session, "l1") == ("s1", "s3")
        given_up = signal_of(session, "s2")
        assert (given_up.state, given_up.lesson) == (SignalState.REFUSED, None)
        assert (given_up.code, given_up.message, given_up.position) == ("failed_outcome", "it failed", 4)
        (row,) = ledger.page(session, ledger.Filter(kind=LedgerKind.REFUSAL)).rows
        assert (row.subject, row.code, row.body["lesson"]) == ("s2", "failed_outcome", "l1")


def test_a_verdict_frees_a_lesson_and_is_named_with_it(database: Database) -> None:
    with database.write() as session:
        ready(session)
        put_signals(session, [a_signal("v", kind="verdict")])
        apply_signal(session, "v")
        free_lesson(session, "l1", verdict="v")
    with database.read() as session:
        assert lesson_of(session, "l1").links == (Link("s1", Role.MAKES), Link("v", Role.FREES))
        assert makers_of(session, "l1") == ("s1",)


def test_lessons_that_one_verdict_freed_are_brought_together(database: Database) -> None:
    with database.write() as session:
        ready(session)
        another(session)
        put_signals(session, [a_signal("v", kind="verdict")])
        apply_signal(session, "v")
        for lesson in ("l1", "l2"):
            free_lesson(session, lesson, verdict="v")
        widen_lesson(session, WIDER, makers=["s3"], takes_in=["l2"])
    with database.read() as session:
        links = {(link.signal, link.role) for link in lesson_of(session, "l1").links}
        assert links == {("s1", Role.MAKES), ("s2", Role.MAKES), ("s3", Role.MAKES), ("v", Role.FREES)}


def test_a_lesson_that_rides_is_what_it_is(database: Database) -> None:
    with database.write() as session:
        ready(session)
        another(session)
        begin_ride(session, "l1", turn=None)
    with database.write() as session, pytest.raises(WrongState, match="must be planned"):
        widen_lesson(session, WIDER, makers=["s3"], takes_in=[])
    with pytest.raises(WrongState, match="must be planned"), database.write() as session:
        widen_lesson(session, replace(WIDER, id="l2"), makers=[], takes_in=["l1"])
    with database.read() as session:
        assert lesson_of(session, "l2").lesson == a_lesson("l2")
