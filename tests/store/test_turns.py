import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from store.database import Database
from store.errors import AlreadyRecorded, StorageFailed, Unknown
from store.tables import TurnTable
from store.turns import context_is_private, latest_turn, record_turn, turn_of
from tests.store.builders import PROMPT, SECRET, a_turn


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


def test_a_private_turn_leaves_neither_text_nor_token_ids_in_any_file(database: Database, path: Path) -> None:
    with database.write() as session:
        record_turn(session, a_turn(private=True))
    with database.read() as session:
        assert turn_of(session, "t1") == a_turn(private=True).without_words()
    database.close()
    on_disk = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"t1" in on_disk
    assert SECRET.encode() not in on_disk
    assert PROMPT[3].to_bytes(4, "little") not in on_disk


def test_the_table_itself_refuses_words_in_a_private_turn(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(StorageFailed, match="private_is_wordless"), database.write() as session:
        session.get_one(TurnTable, "t1").private = True


def test_token_ids_take_four_bytes_each(database: Database, path: Path) -> None:
    with database.write() as session:
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
