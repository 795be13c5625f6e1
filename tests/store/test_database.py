import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from store import revisions
from store.chain import verify
from store.database import Database, upgrade_database
from store.errors import AlreadyOpen, NoDatabase, ReadOnly, StorageFailed, UnsupportedUrl, WrongRevision
from store.rows import columns_of
from store.signals import put_signals, received_signals
from store.store import Store
from store.tables import TurnTable
from store.turns import latest_turn, record_turn
from tests.postgresql import Server
from tests.store.builders import SECRET, a_signal, a_turn


def test_a_new_database_is_made_with_its_directory_only_when_asked_for(tmp_path: Path) -> None:
    place = tmp_path / "data" / "ledger.db"
    with pytest.raises(NoDatabase, match=str(place)):
        Database.open(place)
    assert not place.parent.exists()
    Database.open(place, create=True).close()
    Database.open(f"sqlite:///{place}").close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "http://host/"])
def test_a_url_that_is_neither_a_file_nor_postgresql_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedUrl):
        Database.open(url, create=True)


def test_every_connection_has_its_pragmas(sqlite: Database) -> None:
    pragmas = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5_000}
    for transaction in (sqlite.write, sqlite.read):
        with transaction() as session:
            assert {name: session.scalar(text(f"PRAGMA {name}")) for name in pragmas} == pragmas


@pytest.mark.parametrize("found", ["none", "9999"])
def test_another_revision_is_not_opened_and_the_command_is_named(path: Path, found: str) -> None:
    Database.open(path, create=True).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(
            "DELETE FROM alembic_version" if found == "none" else "UPDATE alembic_version SET version_num = 9999"
        )
        raw.commit()
    for create in (False, True):
        with pytest.raises(WrongRevision) as caught:
            Database.open(path, create=create)
        message = str(caught.value)
        assert f"is at revision {found}, this ridealong needs {revisions.head()}" in message
        assert f"`ridealong ledger upgrade --data-dir {path.parent}`" in message
        assert ("a newer one" in message) == (found == "9999")


def test_a_refused_database_is_left_unlocked(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE someone_elses (x)")
    for _ in range(2):
        with pytest.raises(WrongRevision):
            Database.open(path, create=True)


def test_a_file_that_is_no_database_says_so(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 99)
    with pytest.raises(StorageFailed, match="file is not a database"):
        Database.open(path)


def test_a_second_writer_is_refused_and_a_reader_is_not(sqlite: Database, path: Path) -> None:
    with pytest.raises(AlreadyOpen, match=f"in process {os.getpid()}"):
        Database.open(path)
    with pytest.raises(AlreadyOpen):
        upgrade_database(path)
    with closing(Database.open(path, read_only=True)) as reader, reader.read() as session:
        assert received_signals(session) == []


def test_the_writers_place_is_free_after_closing_twice(sqlite: Database, path: Path) -> None:
    sqlite.close()
    sqlite.close()
    Database.open(path).close()


def test_a_reader_cannot_write(database: Database, place: str | Path) -> None:
    with pytest.raises(StorageFailed, match=r"read-?only"), database.read() as session:
        record_turn(session, a_turn())
    with closing(Database.open(place, read_only=True)) as reader, pytest.raises(ReadOnly), reader.write():
        pass


def test_a_reader_sees_one_state_while_the_writer_goes_on(database: Database) -> None:
    with database.read() as before:
        assert received_signals(before) == []
        with database.write() as session:
            put_signals(session, [a_signal()])
            with database.read() as during:
                assert received_signals(during) == []
        assert received_signals(before) == []
    with database.read() as after:
        assert len(received_signals(after)) == 1


def test_a_write_holds_the_lock_from_its_first_query_on(sqlite: Database, path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as raw, sqlite.write() as session:
        latest_turn(session, agent="ada", context="room")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            raw.execute("BEGIN IMMEDIATE")


def test_upgrading_a_database_at_the_newest_revision_changes_nothing(place: str | Path) -> None:
    Database.open(place, create=True).close()
    assert upgrade_database(place) == revisions.head()
    Database.open(place).close()


ACKNOWLEDGE_FOREVER = """
import sys
from itertools import count
from store.database import Database
from store.signals import put_signals
from tests.postgresql import Server
from tests.store.builders import a_signal

database = Database.open(sys.argv[1], create=True)
for batch in count():
    with database.write() as session:
        puts = put_signals(session, [a_signal(f"{batch}.{n}") for n in range(3)])
    print(*(put.id for put in puts), flush=True)
"""


def test_kill_9_loses_no_acknowledged_signal(place: str | Path) -> None:
    acknowledged: list[str] = []
    command = [sys.executable, "-c", ACKNOWLEDGE_FOREVER, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged += line.split()
            if len(acknowledged) == 60:
                writer.send_signal(signal.SIGKILL)  # while it is in the middle of the next batches
    assert writer.returncode == -signal.SIGKILL
    with closing(Database.open(place)) as database, database.read() as session:
        kept = {kept.signal.id for kept in received_signals(session)}
        assert set(acknowledged) <= kept
        assert len(kept) % 3 == 0
        assert verify(session).why is None
        assert verify(session).rows == len(kept)


def test_an_error_of_the_database_says_nothing_of_what_was_written(database: Database) -> None:
    with database.write() as session:
        record_turn(session, a_turn())
    with pytest.raises(StorageFailed) as caught, database.write() as session:
        session.execute(insert(TurnTable), [columns_of(a_turn())])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_missing_driver_is_told_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedUrl, match=r"needs the Python package psycopg: install ridealong\[postgresql\]"):
        Database.open("postgresql://ada:secret@nowhere/db")


def test_an_upgrade_of_postgresql_waits_for_no_writer_and_none_opens_meanwhile(postgresql: Server) -> None:
    url = postgresql.new_database()
    with closing(Database.open(url, create=True)), pytest.raises(AlreadyOpen, match="stop that one first"):
        upgrade_database(url)
    assert upgrade_database(url) == revisions.head()


def test_a_second_writer_of_postgresql_is_refused_unless_both_are_lanes(postgresql: Server) -> None:
    url = postgresql.new_database()
    for lane in (None, "one"):
        with closing(Database.open(url, create=True)), pytest.raises(AlreadyOpen, match="stop that one first"):
            Database.open(url, lane=lane)
    with closing(Database.open(url, lane="one")), pytest.raises(AlreadyOpen):
        Database.open(url)


def test_a_lane_is_one_process(postgresql: Server) -> None:
    url = postgresql.new_database()
    with closing(Database.open(url, create=True, lane="one")):
        with pytest.raises(AlreadyOpen, match="lane one has the ledger open in another process"):
            Database.open(url, lane="one")
        Database.open(url, lane="other").close()
    Database.open(url, lane="one").close()


def test_two_lanes_that_start_at_once_make_one_database(postgresql: Server) -> None:
    url = postgresql.new_database()
    with ThreadPoolExecutor(2) as threads:
        for opened in threads.map(lambda lane: Database.open(url, create=True, lane=lane), ("one", "other")):
            opened.close()
    with closing(Database.open(url)) as database:
        assert revisions.current(database.engine) == revisions.head()


def test_two_writers_at_once_make_one_chain(postgresql: Server) -> None:
    url = postgresql.new_database()
    with (
        closing(Database.open(url, create=True, lane="one")) as one,
        closing(Database.open(url, lane="other")) as other,
    ):

        def put(database: Database, name: str) -> None:
            for batch in range(20):
                with database.write() as session:
                    put_signals(session, [a_signal(f"{name}{batch}.{n}") for n in range(3)])

        threads = [threading.Thread(target=put, args=own) for own in ((one, "a"), (other, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with one.read() as session:
            assert (verify(session).rows, verify(session).why) == (120, None)


def test_a_server_that_was_restarted_is_connected_to_anew_by_the_same_lane(postgresql: Server) -> None:
    url = postgresql.new_database()
    with closing(Database.open(url, create=True, lane="one")) as database:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        postgresql.say(f"{cut} AND pid <> pg_backend_pid()", database=url.split("/")[3].split("?")[0])
        with database.write() as session:
            put_signals(session, [a_signal()])
        with pytest.raises(AlreadyOpen):
            Database.open(url, lane="one")


def test_what_gave_way_to_another_program_is_done_again(postgresql: Server) -> None:
    tries = list[int]()

    def gives_way_once(session: Session) -> int:
        tries.append(1)
        put_signals(session, [a_signal()])
        if len(tries) == 1:
            session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"))
        return len(received_signals(session))

    async def write() -> int:
        with Store.open(postgresql.new_database(), create=True) as store:
            return await store.write(gives_way_once)

    assert (asyncio.run(write()), len(tries)) == (1, 2)
