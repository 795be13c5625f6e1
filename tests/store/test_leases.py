"""Whose an agent is, where lanes share a PostgreSQL database: two lanes in one process, one database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from store import adapters, leases, lessons, reshaping, steps, turns
from store.abandoned import any_abandoned, end_abandoned
from store.chain import verify
from store.database import Database
from store.errors import Elsewhere, OtherModel
from store.records import Link, RefusedSignal
from store.signals import put_signals, signals_of
from store.store import Store
from store.tables import LeaseTable
from store.words import LessonState, Role, SignalState
from tests.postgresql import Server
from tests.store.builders import a_lesson, a_signal, a_step, a_turn, ready, riding

MODEL = {"model": "tiny", "rank": "8"}
HEAD = "shadow/sha0.safetensors"


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_database()


@pytest.fixture
def one(url: str) -> Iterator[Database]:
    with closing(Database.open(url, create=True, lane="one")) as opened:
        yield opened


@pytest.fixture
def other(one: Database, url: str) -> Iterator[Database]:
    with closing(Database.open(url, lane="other")) as opened:
        yield opened


def hold(database: Database, agent: str = "ada", *, seconds: float = 60, snapshot: str | None = None) -> bool:
    with database.write() as session:
        return leases.hold(session, agent, seconds=seconds, made_for=MODEL, snapshot=snapshot)


def expire(database: Database) -> None:
    """As if the lanes had said nothing for long."""
    with database.write() as session:
        session.execute(update(LeaseTable).values(expires_at_us=0))


def begin(database: Database, how: Callable[[Session], None]) -> None:
    assert hold(database)
    with database.write() as session:
        how(session)


def test_an_agent_belongs_to_one_lane_until_its_lease_runs_out(one: Database, other: Database) -> None:
    assert hold(one)
    assert not hold(other)
    assert hold(other, "bob")
    assert (one.leases.holds("ada"), other.leases.holds("ada")) == (True, False)
    expire(one)
    assert hold(other)
    assert not hold(one)


def test_a_lease_that_is_renewed_does_not_run_out(one: Database, other: Database) -> None:
    assert hold(one, seconds=0)
    with one.write() as session:
        leases.renew(session, seconds=60)
    assert not hold(other)


def test_a_lane_that_closes_lets_its_agents_go(one: Database, other: Database) -> None:
    assert hold(one)
    with one.write() as session:
        leases.release(session)
    assert not one.leases.holds("ada")
    assert hold(other)


def test_a_shadow_is_gone_on_with_only_by_a_lane_that_has_its_snapshot(one: Database, other: Database) -> None:
    begin(one, ready)
    expire(one)
    for wrong in (None, "shadow/sha9.safetensors"):
        assert not hold(other, snapshot=wrong)
    assert hold(other, snapshot=HEAD)


CHANGES: dict[str, Callable[[Session], object]] = {
    "plan": lambda session: lessons.plan_lesson(session, a_lesson("l2"), signals=[Link("s2", Role.MAKES)]),
    "weigh": lambda session: lessons.reweigh_lesson(session, "l1", weights=(1.0, 0.0, 1.0), signal="s2"),
    "ride": lambda session: lessons.begin_ride(session, "l1", turn=None),
    "end": lambda session: lessons.end_ride(session, "l1"),
    "refuse": lambda session: lessons.refuse_lesson(session, "l1", code="expired", message="x"),
    "recover": lambda session: lessons.recover(session, "ada"),
    "widen": lambda session: reshaping.widen_lesson(session, a_lesson(), makers=["s2"], takes_in=[]),
    "give up": lambda session: reshaping.give_up_signal(session, a_lesson(), RefusedSignal("s1", "expired", "x")),
    "free": lambda session: reshaping.free_lesson(session, "l1", verdict="s2"),
    "open": lambda session: adapters.open_adapter(session, "ada", sha="x", snapshot="x"),
    "promote": lambda session: adapters.promote(session, "ada", sha="sha0"),
    "roll back": lambda session: adapters.rollback(session, "ada", version=0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["expired", "taken"])
def test_a_lane_that_lost_an_agent_changes_nothing_of_hers(
    one: Database, other: Database, change: str, how: str
) -> None:
    begin(one, ready)
    with one.write() as session:
        put_signals(session, [a_signal("s2")])
        before = verify(session)
    expire(one)
    assert how == "expired" or hold(other, snapshot=HEAD)
    with pytest.raises(Elsewhere, match="agent 'ada' belongs to"), one.write() as session:
        CHANGES[change](session)
    with one.read() as session:
        assert verify(session) == before


def test_a_step_of_a_lane_that_lost_the_agent_is_not_kept(one: Database, other: Database) -> None:
    begin(one, riding)
    expire(one)
    assert hold(other, snapshot=HEAD)
    with pytest.raises(Elsewhere, match="belongs to lane other"), one.write() as session:
        steps.commit_step(session, a_step())
    with other.write() as session:
        assert [kept.lesson.id for kept in lessons.recover(session, "ada")] == ["l1"]
        lessons.begin_ride(session, "l1", turn=None)
        assert steps.commit_step(session, a_step("x2")).number == 1
        assert lessons.lesson_of(session, "l1").state is LessonState.LEARNED


def test_an_earlier_process_of_the_same_lane_has_lost_it(one: Database, url: str) -> None:
    begin(one, ready)
    with closing(Database.open(url, lane="one again")) as again:
        again.leases.lane = "one"  # a copy of its data directory
        assert hold(again, snapshot=HEAD)
        with pytest.raises(Elsewhere), one.write() as session:
            lessons.begin_ride(session, "l1", turn=None)
        with again.write() as session:
            lessons.begin_ride(session, "l1", turn=None)


def test_a_renewal_tells_what_was_lost_and_leaves_it_to_who_has_it(one: Database, other: Database) -> None:
    assert hold(one)
    assert hold(one, "bob")
    expire(one)
    assert hold(other)
    with one.write() as session:
        leases.renew(session, seconds=60)
        assert one.leases.agents == {"bob"}
        assert leases.leases_of(session, ["ada", "bob", "eve"]) == {
            "ada": leases.Lease("other", live=True),
            "bob": leases.Lease("one", live=True),
        }


def test_lanes_of_another_model_or_shape_take_nothing_and_are_told_so(one: Database, other: Database) -> None:
    assert hold(one)
    made_for = MODEL | {"rank": "4"}
    with pytest.raises(OtherModel, match="has rank 8, this lane has 4"), other.write() as session:
        leases.hold(session, "bob", seconds=60, made_for=made_for, snapshot=None)
    expire(one)  # nothing was made for that model yet
    with other.write() as session:
        assert leases.hold(session, "bob", seconds=60, made_for=made_for, snapshot=None)


def test_a_start_of_another_model_is_refused_where_there_are_adapters(one: Database, other: Database) -> None:
    begin(one, ready)
    expire(one)
    with other.read() as session:
        leases.require_same_model(session, MODEL)
        with pytest.raises(OtherModel):
            leases.require_same_model(session, MODEL | {"model": "else"})


def test_a_lane_ends_the_turns_that_it_left_open_and_no_others(one: Database, other: Database) -> None:
    for database in (one, other):
        with database.write() as session:
            lane = database.leases.lane
            turns.open_turn(session, replace(a_turn(f"of {lane}"), lane=lane, finish_reason=None))
    with one.write() as session:
        assert turns.end_open_turns(session) == 1
        assert turns.turn_of(session, "of one").finish_reason == "failed"
        assert turns.turn_of(session, "of other").finish_reason is None


async def test_a_store_tells_what_every_lane_appends_once_and_in_order(url: str) -> None:
    heard, others = list[int](), list[str]()
    with Store.open(url, create=True, lane="one") as mine, Store.open(url, lane="other") as theirs:
        mine.on_append(lambda rows: heard.extend(row.seq for row in rows))
        mine.on_others(lambda rows: others.extend(row.subject for row in rows))
        for store, name in ((theirs, "a"), (mine, "b"), (theirs, "c"), (theirs, "d")):
            await store.write(put_signals, [a_signal(f"{name}{n}") for n in range(2)])
        await mine.catch_up()
        await mine.catch_up()
    assert heard == [1, 2, 3, 4, 5, 6, 7, 8]
    assert others == ["a0", "a1", "c0", "c1", "d0", "d1"]


def test_what_waits_for_nobody_is_ended_and_what_waits_for_a_lane_is_not(one: Database, other: Database) -> None:
    begin(one, riding)
    with one.write() as session:
        put_signals(session, [a_signal("s2"), a_signal("s3", agent="eve")])

    def ended(before_us: int) -> int:
        with other.write() as session:
            assert any_abandoned(session, before_us=2**62)
            return end_abandoned(session, before_us=before_us, code="expired", message="x")

    assert ended(2**62) == 1  # eve's, who belongs to nobody
    expire(one)
    assert ended(0) == 0
    assert ended(2**62) == 2
    with one.read() as session:
        assert lessons.lesson_of(session, "l1").state is LessonState.REFUSED
        assert {kept.state for kept in signals_of(session, ["s1", "s2", "s3"])} == {SignalState.REFUSED}
        assert not any_abandoned(session, before_us=2**62)
        assert verify(session).why is None
