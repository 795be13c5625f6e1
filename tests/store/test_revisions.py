"""Every revision upgrades, and what it makes is what the models say."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, inspect

from store import revisions
from store.chain import verify
from store.database import Database, upgrade_database
from store.lessons import lesson_of
from store.steps import step_of
from store.tables import Base
from tests.store.builders import PROMPT, a_lesson, a_step

DUMPS = Path(__file__).with_name("revisions")


def test_models_and_migrations_agree(database: Database) -> None:
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_models_and_migrations_have_the_same_checks(sqlite: Database) -> None:
    inspector = inspect(sqlite.engine)
    for name, table in Base.metadata.tables.items():
        said = {(c.name, str(c.sqltext)) for c in table.constraints if isinstance(c, CheckConstraint)}
        assert {(c["name"], c["sqltext"]) for c in inspector.get_check_constraints(name)} == said


def test_there_is_one_newest_revision_and_the_database_is_at_it(database: Database) -> None:
    assert revisions.current(database.engine) == revisions.head()
    assert revisions.head() in revisions.known()


@pytest.mark.parametrize("revision", sorted(revisions.known()))
def test_a_database_of_every_revision_upgrades_with_its_rows(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript((DUMPS / f"{revision}.sql").read_text())
        assert raw.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)
    upgrade_database(path)
    with closing(Database.open(path)) as database, database.read() as session:
        assert lesson_of(session, "l1").lesson == a_lesson()
        assert lesson_of(session, "l1").prefix == PROMPT[:4]
        assert step_of(session, "x1").step == a_step()
        assert verify(session).why is None
        assert verify(session).rows == 7


def test_a_failed_upgrade_leaves_nothing(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE ledger (in_the_way)")
    with pytest.raises(Exception, match="already exists"):
        upgrade_database(path)
    with closing(sqlite3.connect(path)) as raw:
        tables = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert tables == [("ledger",)]
