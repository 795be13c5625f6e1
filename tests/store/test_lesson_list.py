"""The list of lessons: pages, filters, and that a page reads only its own lessons."""

import pytest

from store.database import Database
from store.errors import BadPage, Unknown
from store.lesson_list import MOST_LESSONS, LessonPage, Wanted, listed, page
from store.lessons import begin_ride, plan_lesson, refuse_lesson
from store.steps import commit_step
from store.turns import record_turn
from store.words import LessonState
from tests.store.builders import a_lesson, a_step, a_turn, ready


def five(database: Database) -> None:
    """l1 learned, l2 refused, l3 and l4 waiting, and bob's l9."""
    with database.write() as session:
        ready(session)
        begin_ride(session, "l1", turn="t1")
        commit_step(session, a_step())
        record_turn(session, a_turn("t9", agent="bob"))
        for name in ("l2", "l3", "l4"):
            plan_lesson(session, a_lesson(name), signals=[])
        plan_lesson(session, a_lesson("l9", turn="t9", agent="bob"), signals=[])
        refuse_lesson(session, "l2", code="expired", message="too late", position=3)


def ids(found: LessonPage) -> list[str]:
    return [lesson.id for lesson in found.lessons]


def test_pages_follow_one_another_from_the_newest_on(database: Database) -> None:
    five(database)
    with database.read() as session:
        first = page(session, Wanted(), limit=2)
        second = page(session, Wanted(), limit=2, cursor=first.next_cursor)
        last = page(session, Wanted(), limit=2, cursor=second.next_cursor)
        assert [ids(first), ids(second), ids(last)] == [["l9", "l4"], ["l3", "l2"], ["l1"]]
        assert last.next_cursor is None
        assert page(session, Wanted(), limit=5).next_cursor is None


def test_a_lesson_is_listed_with_what_became_of_it(database: Database) -> None:
    five(database)
    with database.read() as session:
        learned, refused, waiting = (listed(session, name) for name in ("l1", "l2", "l3"))
    assert (learned.step_number, learned.loss_before, learned.loss_after, learned.rows) == (1, 2.5, 1.5, 3)
    assert (refused.code, refused.message, refused.position) == ("expired", "too late", 3)
    assert (waiting.state, waiting.step_number, waiting.code) == (LessonState.PLANNED, None, None)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(agent="bob"), ["l9"]),
        (Wanted(state=LessonState.PLANNED), ["l9", "l4", "l3"]),
        (Wanted(agent="ada", state=LessonState.LEARNED), ["l1"]),
        (Wanted(code="expired"), ["l2"]),
        (Wanted(context="attic"), []),
    ],
)
def test_a_filter_lets_through_what_is_like_it(database: Database, wanted: Wanted, found: list[str]) -> None:
    five(database)
    with database.read() as session:
        assert ids(page(session, wanted)) == found


def test_a_page_that_cannot_be_is_refused(sqlite: Database) -> None:
    with sqlite.read() as session:
        for limit in (0, MOST_LESSONS + 1):
            with pytest.raises(BadPage, match="ask for 1 to 200"):
                page(session, Wanted(), limit=limit)
        with pytest.raises(Unknown):
            page(session, Wanted(), cursor="none")
