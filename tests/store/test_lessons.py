from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from store import ledger
from store.adapters import adapters_of, open_adapter
from store.chain import verify
from store.database import Database
from store.errors import AlreadyRecorded, DoesNotFollow, LessonRefused, Unknown, WrongState
from store.lessons import (
    begin_ride,
    lesson_of,
    plan_lesson,
    recover,
    refuse_lesson,
    reweigh_lesson,
    waiting_lessons,
)
from store.records import Link
from store.signals import put_signals, signal_of
from store.steps import commit_step, last_steps, step_of
from store.turns import record_turn
from store.words import LedgerKind, LessonState, Role, SignalState
from tests.store.builders import PROMPT, REPLY, a_lesson, a_signal, a_step, a_turn, next_lesson, ready, riding


def states(session: Session) -> tuple[LessonState, SignalState]:
    return lesson_of(session, "l1").state, signal_of(session, "s1").state


def test_a_planned_lesson_holds_what_doing_it_again_takes(database: Database) -> None:
    with database.write() as session:
        ready(session)
    with database.read() as session:
        kept = lesson_of(session, "l1")
        assert (kept.lesson, kept.prefix, kept.links) == (a_lesson(), PROMPT[:4], (Link("s1", Role.MAKES),))
        assert states(session) == (LessonState.PLANNED, SignalState.PLANNED)


def test_a_prefix_may_reach_into_the_reply(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
        plan_lesson(session, a_lesson(prefix=7), signals=[])
        assert lesson_of(session, "l1").prefix == PROMPT + REPLY[:2]


def test_a_prefix_longer_than_its_turn_is_refused(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(LessonRefused, match="9 tokens was given"), database.write() as session:
        plan_lesson(session, a_lesson(prefix=9), signals=[])


def test_a_private_turn_makes_no_lesson(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn(private=True))
    with pytest.raises(LessonRefused, match="private"), database.write() as session:
        plan_lesson(session, a_lesson(prefix=0), signals=[])


def test_a_lesson_of_an_unknown_turn_or_signal_is_not_kept(database: Database) -> None:
    with pytest.raises(Unknown, match="no turn 't1'"), database.write() as session:
        plan_lesson(session, a_lesson(), signals=[])
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(Unknown, match="no signal 's9'"), database.write() as session:
        plan_lesson(session, a_lesson(), signals=[Link("s9", Role.MAKES)])


def test_a_lesson_is_planned_once_and_a_signal_makes_one_lesson(database: Database) -> None:
    with database.write() as session:
        ready(session)
    with pytest.raises(AlreadyRecorded), database.write() as session:
        plan_lesson(session, a_lesson(), signals=[])
    with pytest.raises(WrongState, match="'s1' is planned"), database.write() as session:
        plan_lesson(session, a_lesson("l2"), signals=[Link("s1", Role.MAKES)])


def test_a_signal_that_only_weighs_serves_several_lessons_and_is_applied(database: Database) -> None:
    with database.write() as session:
        ready(session)
        put_signals(session, [a_signal("v", kind="verdict")])
        for name in ("l2", "l3"):
            plan_lesson(session, a_lesson(name), signals=[Link("v", Role.FREES)])
        refuse_lesson(session, "l2", code="expired", message="late")
        assert signal_of(session, "v").state is SignalState.APPLIED


def test_a_later_relevance_changes_the_weights_until_the_ride(database: Database) -> None:
    with database.write() as session:
        ready(session)
        put_signals(session, [a_signal("r", kind="relevance", engram="s1")])
        reweigh_lesson(session, "l1", weights=(0.5, 0.0, 0.2), signal="r")
        reweigh_lesson(session, "l1", weights=(0.5, 0.0, 0.3), signal="r")
        kept = lesson_of(session, "l1")
        assert kept.lesson.weights == (0.5, 0.0, 0.3)
        assert kept.links == (Link("s1", Role.MAKES), Link("r", Role.WEIGHS))
        begin_ride(session, "l1", turn="t2")
    with pytest.raises(WrongState, match="riding"), database.write() as session:
        reweigh_lesson(session, "l1", weights=(1.0, 1.0, 1.0), signal="r")


def test_a_ride_names_the_turn_and_moves_the_signals_too(database: Database) -> None:
    with database.write() as session:
        riding(session)
    with database.read() as session:
        assert lesson_of(session, "l1").ridden_turn == "t2"
        assert states(session) == (LessonState.RIDING, SignalState.RIDING)
        assert waiting_lessons(session, agent="ada") == []


def test_waiting_lessons_are_the_agents_in_order_of_planning(database: Database) -> None:
    with database.write() as session:
        ready(session)
        plan_lesson(session, a_lesson("l0"), signals=[])
        plan_lesson(session, a_lesson("bobs", agent="bob"), signals=[])
        plan_lesson(session, replace(a_lesson("l2"), context="hall"), signals=[])
        ids = [kept.lesson.id for kept in waiting_lessons(session, agent="ada")]
        assert ids == ["l1", "l0", "l2"]
        (hall,) = waiting_lessons(session, agent="ada", context="hall")
        assert hall.lesson.id == "l2"


def test_a_refused_lesson_refuses_its_signals_with_the_same_reason(database: Database) -> None:
    with database.write() as session:
        riding(session)
        refuse_lesson(session, "l1", code="prefix_evicted", message="the slot went on", position=3)
    with database.read() as session:
        assert states(session) == (LessonState.REFUSED, SignalState.REFUSED)
        for kept in (lesson_of(session, "l1"), signal_of(session, "s1")):
            assert (kept.code, kept.message, kept.position) == ("prefix_evicted", "the slot went on", 3)
        (row,) = ledger.page(session, ledger.Filter(kind=LedgerKind.REFUSAL)).rows
        assert (row.subject, row.code, row.body["signals"]) == ("l1", "prefix_evicted", ["s1"])


def test_a_committed_step_moves_the_lesson_its_signals_and_the_shadow(database: Database) -> None:
    with database.write() as session:
        riding(session)
        kept = commit_step(session, a_step())
    with database.read() as session:
        assert step_of(session, "x1") == kept
        assert (kept.step, kept.number, kept.signals) == (a_step(), 1, ("s1",))
        lesson = a_lesson()
        assert (kept.prefix_turn, kept.prefix_token_count) == (lesson.turn, lesson.prefix_token_count)
        assert (kept.tokens, kept.targets, kept.weights) == (lesson.tokens, lesson.targets, lesson.weights)
        assert states(session) == (LessonState.LEARNED, SignalState.LEARNED)
        shadow = adapters_of(session, "ada").shadow
        assert (shadow.sha, shadow.snapshot, shadow.step_number) == ("sha1", "shadow/sha1.safetensors", 1)
        fate = signal_of(session, "s1")
        assert (fate.lesson, fate.step, fate.step_number) == ("l1", "x1", 1)
        assert (fate.loss_before, fate.loss_after) == (2.5, 1.5)
        assert verify(session).why is None


def test_steps_are_numbered_by_agent(database: Database) -> None:
    with database.write() as session:
        riding(session)
        commit_step(session, a_step())
        next_lesson(session, 2)
        commit_step(session, a_step("x2", lesson="l2", before="sha1", after="sha2"))
        open_adapter(session, "bob", sha="sha0", snapshot="b")
        plan_lesson(session, a_lesson("bobs", agent="bob"), signals=[])
        begin_ride(session, "bobs", turn=None)
        assert commit_step(session, a_step("y1", lesson="bobs")).number == 1
        assert [kept.number for kept in last_steps(session, agent="ada", limit=9)] == [2, 1]
        assert [kept.number for kept in last_steps(session, agent="ada", limit=1)] == [2]


def learn_it(session: Session) -> None:
    commit_step(session, a_step())


def refuse_it(session: Session) -> None:
    refuse_lesson(session, "l1", code="cancelled", message="stopped")


def put_it_back(session: Session) -> None:
    recover(session)


@pytest.mark.parametrize("before", [learn_it, refuse_it, put_it_back])
def test_a_lesson_learned_refused_or_put_back_takes_no_step(
    database: Database, before: Callable[[Session], None]
) -> None:
    with database.write() as session:
        riding(session)
        before(session)
        shadow, was, told = adapters_of(session, "ada"), states(session), ledger.page(session)
    with pytest.raises(WrongState, match="it must be riding"), database.write() as session:
        commit_step(session, a_step("x9", before=shadow.shadow.sha, after="sha9"))
    with database.read() as session:
        assert (adapters_of(session, "ada"), states(session), ledger.page(session)) == (shadow, was, told)


def test_a_step_id_is_committed_once(database: Database) -> None:
    with database.write() as session:
        riding(session)
        commit_step(session, a_step())
        next_lesson(session, 2)
    with pytest.raises(AlreadyRecorded), database.write() as session:
        commit_step(session, a_step(lesson="l2", before="sha1", after="sha2"))


def test_a_step_that_does_not_follow_the_head_changes_nothing(database: Database) -> None:
    with database.write() as session:
        riding(session)
        told = ledger.page(session)
    with pytest.raises(DoesNotFollow, match="shadow shaX, but the head is sha0"), database.write() as session:
        commit_step(session, a_step(before="shaX"))
    with database.read() as session:
        assert states(session) == (LessonState.RIDING, SignalState.RIDING)
        assert adapters_of(session, "ada").shadow.sha == "sha0"
        assert ledger.page(session) == told


def test_an_error_after_the_step_takes_all_of_it_back(database: Database) -> None:
    def commit_and_fail(session: Session) -> None:
        commit_step(session, a_step())
        begin_ride(session, "no such lesson", turn=None)

    with database.write() as session:
        riding(session)
    with pytest.raises(Unknown), database.write() as session:
        commit_and_fail(session)
    with database.read() as session:
        assert states(session) == (LessonState.RIDING, SignalState.RIDING)
        assert last_steps(session, agent="ada", limit=9) == []


def test_a_restart_puts_rides_back_and_leaves_what_was_learned(database: Database) -> None:
    with database.write() as session:
        riding(session)
        commit_step(session, a_step())
        next_lesson(session, 2)
        put_signals(session, [a_signal("s3")])
        plan_lesson(session, a_lesson("l3"), signals=[Link("s3", Role.MAKES)])
    with database.write() as session:
        assert [kept.lesson.id for kept in recover(session)] == ["l2", "l3"]
        assert states(session) == (LessonState.LEARNED, SignalState.LEARNED)
        assert signal_of(session, "s2").state is SignalState.PLANNED
        assert lesson_of(session, "l2").ridden_turn is None
        told = ledger.page(session, newest=True, limit=1).rows[0]
        assert (told.subject, told.body["why"]) == ("l2", "the ride was cut off by a restart")


def test_a_second_restart_has_nothing_to_put_back(database: Database) -> None:
    with database.write() as session:
        riding(session)
        first = recover(session)
        told = ledger.page(session)
        assert recover(session) == first
        assert ledger.page(session) == told
