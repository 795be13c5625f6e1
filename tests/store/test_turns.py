import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from store.database import Database
from store.errors import AlreadyRecorded, StorageFailed, Unknown
from store.ledger import Filter, page
from store.lessons import lesson_of, plan_lesson
from store.records import Link, Turn
from store.rows import existing
from store.signals import put_signals
from store.tables import TurnTable
from store.turns import (
    begun_with,
    context_is_private,
    end_open_turns,
    last_on_slot,
    latest_turn,
    open_turn,
    private_among,
    record_turn,
    turn_of,
)
from store.words import LedgerKind, Role
from tests.store.builders import PROMPT, REPLY, SECRET, a_lesson, a_signal, a_turn


def an_open_turn(turn_id: str = "t1", *, private: bool = False) -> Turn:
    return replace(
        a_turn(turn_id, private=private),
        slot=None,
        reply_tokens=(),
        reply_text="",
        reply_token_count=0,
        cached_token_count=0,
        finish_reason=None,
        first_token_ms=None,
        total_ms=None,
    )


def told(session: Session) -> list[dict[str, Any]]:
    rows = page(session, Filter(kind=LedgerKind.TURN), limit=10).rows
    return [dict(row.body) | {"subject": row.subject} for row in rows]


def test_a_turn_is_read_as_it_was_recorded(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with database.read() as session:
        assert turn_of(session, "t1") == a_turn()


def test_a_turn_without_a_first_token_is_read_as_it_was_recorded(database: Database) -> None:
    cut = replace(a_turn(), messages=None, reply_tokens=(), reply_token_count=0, first_token_ms=None)
    with database.write() as session:
        record_turn(session, cut)
    with database.read() as session:
        assert turn_of(session, "t1") == cut


def test_a_private_turn_leaves_neither_text_nor_token_ids_in_any_file(sqlite: Database, path: Path) -> None:
    with sqlite.write() as session:
        record_turn(session, a_turn(private=True))
    with sqlite.read() as session:
        assert turn_of(session, "t1") == a_turn(private=True).without_words()
    sqlite.close()
    on_disk = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"t1" in on_disk
    assert SECRET.encode() not in on_disk
    assert PROMPT[3].to_bytes(4, "little") not in on_disk


def test_the_table_itself_refuses_words_in_a_private_turn(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(StorageFailed, match="private_is_wordless"), database.write() as session:
        session.get_one(TurnTable, "t1").private = True


def test_token_ids_take_four_bytes_each(sqlite: Database, path: Path) -> None:
    with sqlite.write() as session:
        record_turn(session, a_turn())
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT length(prompt_tokens) FROM turns").fetchone() == (4 * len(PROMPT),)


def test_a_turn_id_is_recorded_once(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(AlreadyRecorded, match="'t1'"), database.write() as session:
        record_turn(session, a_turn())


def test_an_unknown_turn_says_so(database: Database) -> None:
    with pytest.raises(Unknown, match="no turn 'nowhere'"), database.read() as session:
        turn_of(session, "nowhere")


def test_the_latest_turn_is_the_newest_of_that_agent_in_that_context(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn("new", at_us=30))
        record_turn(session, a_turn("old", at_us=20))
        record_turn(session, a_turn("elsewhere", context="hall", at_us=40))
        record_turn(session, a_turn("another's", agent="bob", at_us=50))
    with database.read() as session:
        latest = latest_turn(session, agent="ada", context="room")
        assert latest is not None
        assert latest.id == "new"
        assert latest_turn(session, agent="ada", context="attic") is None


def test_one_private_turn_makes_the_agents_context_private(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn("t1", private=True))
        record_turn(session, a_turn("t2"))
        record_turn(session, a_turn("t3", context="hall"))
    with database.read() as session:
        assert context_is_private(session, agent="ada", context="room")
        assert not context_is_private(session, agent="ada", context="hall")
        assert not context_is_private(session, agent="bob", context="room")


def test_an_open_turn_is_recorded_at_its_end_and_the_ledger_tells_of_it_once(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn())
    with database.read() as session:
        assert turn_of(session, "t1") == an_open_turn()
        assert told(session) == []
    with database.write() as session:
        record_turn(session, a_turn())
    with database.read() as session:
        assert turn_of(session, "t1") == a_turn()
        assert [(row["subject"], row["finish_reason"]) for row in told(session)] == [("t1", "stop")]


def test_a_lesson_can_be_planned_on_an_open_turn_and_outlives_its_end(database: Database) -> None:
    lesson = replace(a_lesson(prefix=2), lr=0.5)
    with database.write() as session:
        open_turn(session, an_open_turn())
        put_signals(session, [a_signal()])
        plan_lesson(session, lesson, signals=[Link("s1", Role.MAKES)])
    with database.write() as session:
        record_turn(session, a_turn())
    with database.read() as session:
        assert lesson_of(session, "l1").lesson == lesson
        assert lesson_of(session, "l1").prefix == PROMPT[:2]


def test_what_a_crash_left_open_is_ended_as_failed_and_nothing_else_is(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn("cut"))
        record_turn(session, a_turn("whole"))
    with database.write() as session:
        assert end_open_turns(session) == 1
        assert end_open_turns(session) == 0
        assert turn_of(session, "whole") == a_turn("whole")
        assert turn_of(session, "cut") == replace(an_open_turn("cut"), finish_reason="failed")
        assert [(row["subject"], row["finish_reason"]) for row in told(session)] == [
            ("whole", "stop"),
            ("cut", "failed"),
        ]


def test_an_open_private_turn_holds_no_word_and_makes_its_context_private(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn(private=True))
        assert turn_of(session, "t1") == an_open_turn(private=True).without_words()
        assert context_is_private(session, agent="ada", context="room")


def test_an_id_is_opened_once(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn())
    with pytest.raises(AlreadyRecorded), database.write() as session:
        open_turn(session, an_open_turn())


def test_the_last_turn_of_a_slot_is_the_one_whose_end_came_last(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn("long"))
        record_turn(session, a_turn("short", at_us=5_000))
        record_turn(session, replace(a_turn("elsewhere"), slot=1))
        record_turn(session, a_turn("long", at_us=1_000))
        open_turn(session, an_open_turn("next"))
        last = last_on_slot(session, 0)
        assert last is not None
        assert last.id == "long"
        assert last_on_slot(session, 7) is None


def served(turn_id: str, *tokens: int, at_us: int, **fields: Any) -> Turn:
    return replace(a_turn(turn_id, at_us=at_us), prompt_tokens=tokens, prompt_token_count=len(tokens), **fields)


def test_a_conversation_is_found_in_the_newest_turn_that_begins_with_it(database: Database) -> None:
    with database.write() as session:
        record_turn(session, served("first", 1, 2, at_us=10))
        record_turn(session, served("newer", 1, 2, 3, at_us=20))
        record_turn(session, served("other", 1, 9, at_us=30))
        record_turn(session, served("bobs", 1, 2, 3, at_us=40, agent="bob"))
        record_turn(session, served("secret", 1, 2, 3, at_us=50, private=True, context="diary"))

        def found(*tokens: int) -> str | None:
            turn = begun_with(session, agent="ada", tokens=tokens)
            return None if turn is None else turn.id

        assert found(1, 2) == "newer"
        assert found(1, 2, *REPLY) == "first", "the reply counts"
        assert found(1, 2, 3, *REPLY, 8) == "newer", "none begins with it all, this one shares most"
        assert found(1, 9, 9) == "other"
        assert found(7) is None
        assert found(1 + 256) is None, "tokens are compared, not bytes"


@pytest.mark.parametrize("said", ["\0", "a\0\0b\x10", "\x100\0", "\x10\x10\x10\0", "\x100", "0\x10"])
def test_what_was_said_is_read_as_it_was_written(database: Database, said: str) -> None:
    with database.write() as session:
        record_turn(session, replace(a_turn(), reply_text=said, messages=[{"role": "user", "content": said}]))
    with database.read() as session:
        kept = turn_of(session, "t1")
        assert (kept.reply_text, kept.messages) == (said, [{"role": "user", "content": said}])


def test_private_contexts_are_found_without_reading_a_turn(sqlite: Database) -> None:
    with sqlite.write() as session:
        record_turn(session, a_turn(private=True))
        record_turn(session, a_turn("t2", context="hall"))
        record_turn(session, a_turn("t3", agent="bob"))
    asked = list[tuple[str, Any]]()
    with sqlite.read() as session:
        event.listen(session.get_bind(), "before_cursor_execute", lambda *said: asked.append(said[2:4]))
        rooms = [("ada", "room"), ("ada", "hall"), ("bob", "room"), ("eve", "nowhere")]
        assert private_among(session, rooms) == {("ada", "room")}
        statement, values = asked[-1]
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    assert any("SEARCH turns USING COVERING INDEX ix_turns_private" in row.detail for row in plan), plan


def test_an_open_turn_that_is_forgotten_ends_without_its_words(database: Database) -> None:
    with database.write() as session:
        open_turn(session, an_open_turn())
    with database.write() as session:
        row = existing(session, TurnTable, "t1")
        for name in ("messages", "template_args", "prompt_tokens", "reply_tokens", "reply_text"):
            setattr(row, name, None)
    with database.write() as session:
        record_turn(session, a_turn())
    with database.read() as session:
        assert turn_of(session, "t1") == a_turn().without_words()
