"""Scrubbing: SQLite's files hold nothing of what was erased, or it is said that they still do."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from store import database as database_module
from store.database import Database
from store.errors import StillRead
from store.scrubbing import scrub

SAID = b"the lighthouse is lit by glass bees"


def held(path: Path) -> bool:
    """Is it in the database's file, or in its log?"""
    return any(SAID in file.read_bytes() for file in path.parent.iterdir() if file.name.startswith(path.name))


def erased(path: Path) -> None:
    """Write a text and delete it, by a SQLite that leaves deleted bytes where they are."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE said (text BLOB)")
        connection.executemany("INSERT INTO said VALUES (?)", [(SAID,)] * 1000)
        connection.commit()
        connection.execute("DROP TABLE said")
    connection.close()


def test_what_was_erased_is_in_no_file_after_a_scrub(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    database = Database.open(path, create=True)
    erased(path)
    assert held(path)
    scrub(database)
    assert not held(path)
    scrub(database)
    database.close()


def test_a_program_that_reads_keeps_the_log_and_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_MS", 50)
    path = tmp_path / "ledger.db"
    database = Database.open(path, create=True)
    erased(path)
    with database.read() as session:
        session.execute(text("SELECT count(*) FROM turns"))
        with pytest.raises(StillRead, match="end that program"):
            scrub(database)
    scrub(database)
    assert not held(path)
    database.close()
