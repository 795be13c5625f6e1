"""Archiving: the oldest rows leave for a file, and the chain is checked across both as if they had not."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text, update

from store import archive as archives
from store import ledger
from store.adapters import open_adapter
from store.archive import archive, verify_with
from store.chain import Verified, verify
from store.database import Database
from store.errors import Archived, NotArchived, StorageFailed
from store.exports import exports_no_more_hers, tell_export
from store.policies import policies, put_policy, take_back_policy
from store.records import LedgerRow
from store.signals import put_signals
from store.tables import AdapterTable
from store.turns import record_turn
from tests.postgresql import Server
from tests.store.builders import a_signal, a_turn
from tests.store.test_ledger import TRIGGERS, an_entry, six_rows, tamper


def lines_of(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def all_rows(database: Database) -> tuple[LedgerRow, ...]:
    with database.read() as session:
        return ledger.page(session).rows


def checked(database: Database, *files: Path) -> Verified:
    with database.read() as session:
        return verify_with(session, files) if files else verify(session)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "old.ndjson.gz"


@pytest.fixture
def archived(sqlite: Database, file: Path) -> Database:
    """Six rows, of which the first three are archived; the archive's own row is number 7."""
    six_rows(sqlite)
    archive(sqlite, file, before_us=40)
    return sqlite


def test_the_oldest_rows_are_in_the_file_and_no_longer_in_the_ledger(database: Database, file: Path) -> None:
    six_rows(database)
    before = all_rows(database)
    anchor = archive(database, file, before_us=40)
    assert [row["seq"] for row in lines_of(file)] == [1, 2, 3]
    assert lines_of(file)[1] == {name: getattr(before[1], name) for name in LedgerRow.__slots__}
    *kept, told = all_rows(database)
    assert tuple(kept) == before[3:]
    assert (told.seq, told.kind, told.body) == (7, "archive", anchor.body())
    assert (anchor.through_seq, anchor.through_sha, anchor.file) == (3, before[2].sha, file.name)
    assert checked(database) == Verified(4, told.sha, archived=3)
    assert checked(database, file) == Verified(7, told.sha)


def test_archives_follow_one_another_in_whatever_order_they_are_given(archived: Database, tmp_path: Path) -> None:
    for number in range(2):
        archive(archived, tmp_path / f"{number}.gz", before_us=2**62)
    files = [tmp_path / name for name in ("1.gz", "old.ndjson.gz", "0.gz")]
    assert [row.seq for row in all_rows(archived)] == [9]
    assert checked(archived, *files).rows == 9
    assert checked(archived, *files).why is None
    assert checked(archived).archived == 8


def test_numbers_are_never_used_again_though_everything_was_archived_and_the_file_made_anew(
    sqlite: Database, path: Path, file: Path
) -> None:
    six_rows(sqlite)
    archive(sqlite, file, before_us=2**62)
    sqlite.close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("VACUUM")
    with closing(Database.open(path)) as again:
        with again.write() as session:
            assert ledger.append(session, an_entry()).seq == 8
        assert checked(again).why is None
        assert checked(again, file).rows == 8


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM ledger WHERE seq = 4",
        "DELETE FROM ledger",
        "UPDATE ledger SET agent = 'eve' WHERE seq = 7",
        "INSERT INTO ledger SELECT 3, at_us, kind, agent, context, code, subject, body, previous, sha FROM ledger",
        "INSERT OR REPLACE INTO ledger SELECT * FROM ledger WHERE seq = 7",
    ],
)
def test_the_database_lets_nothing_else_go(archived: Database, path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as raw, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute(statement)
    assert checked(archived).rows == 4


def test_postgresql_lets_go_what_is_archived_and_nothing_else(postgresql: Server, file: Path) -> None:
    with closing(Database.open(postgresql.new_database(), create=True)) as database:
        six_rows(database)
        archive(database, file, before_us=40)
        with pytest.raises(StorageFailed, match="append-only"), database.write() as session:
            session.execute(text("DELETE FROM ledger WHERE seq = 4"))
        assert checked(database, file).rows == 7


def test_a_file_that_is_there_is_not_written_over(archived: Database, file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(NotArchived, match="is there already"):
        archive(archived, file, before_us=2**62)
    assert file.read_bytes() == before


def test_nothing_is_archived_when_nothing_is_old_enough(archived: Database, tmp_path: Path) -> None:
    with pytest.raises(NotArchived, match="no row before"):
        archive(archived, tmp_path / "new.gz", before_us=40)
    with pytest.raises(NotArchived, match="cannot be written"):
        archive(archived, tmp_path / "nowhere" / "new.gz", before_us=50)
    assert len(all_rows(archived)) == 4
    assert list(tmp_path.glob("new*")) == []


def test_rows_that_were_changed_are_not_archived(sqlite: Database, path: Path, file: Path) -> None:
    six_rows(sqlite)
    tamper(path, "UPDATE ledger SET agent = 'eve' WHERE seq = 2")
    with pytest.raises(NotArchived, match="row 2 was changed"):
        archive(sqlite, file, before_us=50)
    assert not file.exists()
    assert len(all_rows(sqlite)) == 6


def test_a_failure_between_file_and_ledger_leaves_every_row_where_it_was(
    sqlite: Database, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    six_rows(sqlite)

    def fail(*_given: object) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(ledger, "append", fail)
    with pytest.raises(StorageFailed):
        archive(sqlite, file, before_us=40)
    monkeypatch.undo()
    assert len(all_rows(sqlite)) == 6
    assert checked(sqlite).why is None
    archive(sqlite, file.with_name("again.gz"), before_us=40)
    assert file.with_name("again.gz").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("seq", [4, 5, 7])
def test_a_changed_row_after_the_archive_is_found(archived: Database, path: Path, seq: int) -> None:
    tamper(path, f"UPDATE ledger SET agent = 'eve' WHERE seq = {seq}")
    assert (checked(archived).bad, checked(archived).rows) == (seq, seq - 4)


@pytest.mark.parametrize("seq", [4, 6])
def test_a_missing_row_after_the_archive_is_found(archived: Database, path: Path, seq: int) -> None:
    tamper(path, f"DELETE FROM ledger WHERE seq = {seq}")
    assert checked(archived).bad == seq


def test_an_archives_row_that_is_lost_or_damaged_is_found(archived: Database, path: Path) -> None:
    tamper(path, "UPDATE ledger SET body = '{}' WHERE seq = 7")
    assert (checked(archived).bad, checked(archived).why) == (7, "row 7 was changed: its content has another hash")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM ledger WHERE seq = 7")
        raw.commit()
    assert (checked(archived).bad, checked(archived).why) == (1, "row 1 is missing: the next one there is 4")


def test_a_policy_stands_though_its_row_is_archived(sqlite: Database, file: Path) -> None:
    with sqlite.write() as session:
        for agent in ("ada", "bob", "eve"):
            put_policy(session, agent, {"learn": True})
        put_policy(session, "bob", {"learn": False})
        take_back_policy(session, "eve")
    archive(sqlite, file, before_us=2**62)
    with sqlite.read() as session:
        assert policies(session) == {"ada": {"learn": True}, "bob": {"learn": False}}
        assert {row.kind for row in ledger.page(session).rows} == {"archive", "policy"}
    assert checked(sqlite, file).rows == 8


def test_exports_are_found_though_their_rows_are_archived_and_those_that_are_gone_are_not_said_again(
    sqlite: Database, file: Path, tmp_path: Path
) -> None:
    with sqlite.write() as session:
        open_adapter(session, "ada", sha="sha0", snapshot="zero")
        tell_export(session, "ada", name="mine", version=0, sha="sha0")
        tell_export(session, "ada", name="gone", version=1, sha="sha1")
    archive(sqlite, file, before_us=2**62)
    archive(sqlite, tmp_path / "later.ndjson.gz", before_us=2**62)
    with sqlite.write() as session:
        told = [row for row in ledger.page(session).rows if row.kind == "export"]
        assert [(row.agent, row.body["name"], row.body["first_told"]) for row in told] == [("ada", "mine", 2)]
        assert exports_no_more_hers(session, "ada") == []
        session.execute(update(AdapterTable).values(sha="sha2"))
        assert exports_no_more_hers(session, "ada") == [("mine", "sha0")]
    assert checked(sqlite, file, tmp_path / "later.ndjson.gz").why is None


def test_what_was_told_of_in_an_archive_is_not_missed_and_what_came_after_is(
    sqlite: Database, path: Path, file: Path
) -> None:
    with sqlite.write() as session:
        record_turn(session, a_turn("t1"))
        put_signals(session, [a_signal("s1")])
    archive(sqlite, file, before_us=2**62)
    assert checked(sqlite).why is None
    with sqlite.write() as session:
        put_signals(session, [a_signal("s2")])
    with sqlite.write() as session:
        record_turn(session, a_turn("t2", at_us=2**61))
    assert checked(sqlite).why is None
    tamper(path, "DELETE FROM ledger WHERE seq = 5")
    assert checked(sqlite).why == "the row of turn 't2' is missing"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM turns WHERE id = 't2'")
        raw.execute("DELETE FROM ledger WHERE seq = 4")
        raw.commit()
    assert checked(sqlite).why == "the row of signal 's2' is missing"


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old.encode(), new.encode())))


def test_a_changed_archive_is_found_and_its_first_bad_row_named(archived: Database, file: Path) -> None:
    rewrite(file, '"bob"', '"eve"')
    found = checked(archived, file)
    assert (found.rows, found.bad) == (1, 2)
    assert "row 2 was changed" in str(found.why)
    assert file.name in str(found.why)


def test_an_archive_that_is_another_file_is_found_though_its_rows_are_right(
    archived: Database, file: Path
) -> None:
    rewrite(file, '"seq": 3', '"seq":  3')
    assert "not the file that the ledger names" in str(checked(archived, file).why)


def test_an_archive_that_is_not_given_is_missed(archived: Database, tmp_path: Path, file: Path) -> None:
    second = tmp_path / "second.gz"
    archive(archived, second, before_us=2**62)
    assert (checked(archived, second).bad, checked(archived, file).bad) == (1, 4)


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", gzip.compress(b"no JSON\n", mtime=0), gzip.compress(b'{"seq": 1}\n', mtime=0)]
)
def test_what_is_no_archive_is_said_to_be_none(archived: Database, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    why = checked(archived, file).why
    assert why is not None
    assert str(file) in why


def test_a_cut_archive_is_found(archived: Database, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])
    assert "cannot be read" in str(checked(archived, file).why)


def test_an_archived_row_is_said_to_be_archived(archived: Database) -> None:
    with archived.read() as session, pytest.raises(Archived, match="row 3 is archived, as all up to 3"):
        ledger.row_of(session, 3)


def test_the_triggers_are_those_that_tests_go_past(sqlite: Database, path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    assert {name for (name,) in names} == set(TRIGGERS)
    assert archives.NOBODY == ""
