"""The summary against the same counts made by hand, and its queries against what they may read."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, text

from store.adapters import open_adapter, promote
from store.database import Database
from store.lessons import begin_ride, plan_lesson, refuse_lesson
from store.signals import apply_signal, put_signals, refuse_signal
from store.steps import commit_step
from store.summary import POINTS, Facts, Point, Span, Standing, Summary, summarise
from store.turns import record_turn
from store.words import LessonState, SignalState
from tests.store.builders import a_lesson, a_signal, a_step, a_turn, next_lesson, ready


def two_agents(database: Database) -> None:
    """Ada: two turns, a step, a refused lesson, a refused signal. Bob: a turn and an applied signal."""
    with database.write() as session:
        ready(session)
        begin_ride(session, "l1", turn="t1")
        commit_step(session, a_step())
        promote(session, "ada", sha="sha1")
        record_turn(session, a_turn("t2", at_us=2_000))
        next_lesson(session, 2)
        refuse_lesson(session, "l2", code="expired", message="too late")
        put_signals(session, [a_signal("s3")])
        refuse_signal(session, "s3", code="policy_off", message="no")
        record_turn(session, a_turn("t9", agent="bob", at_us=3_000))
        put_signals(session, [a_signal("s9", agent="bob", turn="t9", kind="verdict")])
        apply_signal(session, "s9")


def summary(database: Database, **span: int | str) -> Summary:
    with database.read() as session:
        return summarise(session, Span(**span))  # type: ignore[arg-type]


def steps_of(database: Database, count: int) -> None:
    """So many steps of ada's, of losses 0, 1, 2, …"""
    with database.write() as session:
        record_turn(session, a_turn())
        open_adapter(session, "ada", sha="sha0", snapshot="a")
        for number in range(count):
            next_lesson(session, number)
            step = a_step(f"x{number}", lesson=f"l{number}", before=f"sha{number}", after=f"sha{number + 1}")
            commit_step(session, step)
        session.execute(text("UPDATE steps SET loss_before = number - 1, created_at_us = 10 * number"))


def test_an_empty_ledger_has_an_empty_summary(database: Database) -> None:
    assert summary(database) == Summary(None, None, Facts(), {})


def test_each_agent_has_her_own_counts_and_the_totals_are_their_sums(database: Database) -> None:
    two_agents(database)
    found = summary(database)
    ada = Facts(turns=2, steps=1, learned_tokens=2, learning_ms=120.5, waited_ms=3.5)
    ada.signals.update({SignalState.LEARNED: 1, SignalState.REFUSED: 2})
    ada.lessons.update({LessonState.LEARNED: 1, LessonState.REFUSED: 1})
    ada.refused_lessons["expired"], ada.refusals["expired"], ada.refusals["policy_off"] = 1, 1, 1
    bob = Facts(turns=1)
    bob.signals[SignalState.APPLIED] = 1
    assert list(found.agents) == ["ada", "bob"]
    assert (found.agents["ada"].facts, found.agents["bob"].facts) == (ada, bob)
    ada.add(bob)
    assert found.totals == ada
    assert found.totals.turns == 3
    assert found.first_seq == 1


def test_an_agent_stands_where_her_adapters_and_her_last_step_are(database: Database) -> None:
    two_agents(database)
    with database.write() as session:
        plan_lesson(session, a_lesson("l4"), signals=[])
        begin_ride(session, "l4", turn=None)
        commit_step(session, a_step("x2", lesson="l4", before="sha1", after="sha2"))
    own = summary(database).agents["ada"]
    assert own.adapter == Standing(stable_version=1, stable_step=1, shadow_step=2)
    assert own.last_step is not None
    assert (own.last_step.step.id, own.last_step.number) == ("x2", 2)
    assert summary(database).agents["bob"].adapter is None


def test_one_agents_summary_has_nobody_else_in_it(database: Database) -> None:
    two_agents(database)
    found = summary(database, agent="bob")
    assert list(found.agents) == ["bob"]
    assert found.totals == summary(database).agents["bob"].facts


def test_a_span_of_time_counts_what_began_in_it(database: Database) -> None:
    two_agents(database)
    assert summary(database, since_us=2_000, until_us=3_000).totals.turns == 1
    assert summary(database, since_us=2_000).totals.signals.total() == 4
    assert summary(database, until_us=3_001).totals == Facts(turns=3)


@pytest.mark.parametrize("count", [1, POINTS, POINTS + 1])
def test_a_series_has_every_step_in_it_and_is_bounded(database: Database, count: int) -> None:
    steps_of(database, count)
    points = summary(database).agents["ada"].losses
    assert len(points) == min(count, POINTS)
    assert sum(point.steps for point in points) == count
    assert sum(point.loss_before * point.steps for point in points) == sum(range(count))
    assert points[-1].number == count
    if count <= POINTS:
        assert points == [Point(n + 1, 1, 10 * (n + 1), n, 1.5) for n in range(count)]
    assert [point.number for point in points] == sorted(point.number for point in points)


def test_nothing_is_read_but_indexes(sqlite: Database) -> None:
    two_agents(sqlite)
    with _statements(sqlite) as said:
        summary(sqlite, since_us=0)
    counting = [statement for statement in said if "GROUP BY" in statement]
    assert len(counting) == 5
    with sqlite.read() as session:
        for statement in counting:
            plan = session.connection().exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", (0,) * statement.count("?")
            )
            reads = [row.detail for row in plan if " turns" in row.detail or "USING" in row.detail]
            tables = [row for row in reads if row.startswith(("SCAN", "SEARCH"))]
            assert tables, statement
            assert all("COVERING INDEX" in row for row in tables), tables


@contextmanager
def _statements(database: Database) -> Iterator[list[str]]:
    said: list[str] = []

    def heard(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        said.append(statement)

    engine = database._readers
    event.listen(engine, "before_cursor_execute", heard)
    yield said
    event.remove(engine, "before_cursor_execute", heard)
