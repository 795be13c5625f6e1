"""A database of each kind, closed at the end of each test: a temporary file, and one of a PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.database import Database
from tests.postgresql import Server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Where there is no database yet, by file or URL."""
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture
def database(place: str | Path) -> Iterator[Database]:
    opened = Database.open(place, create=True)
    yield opened
    opened.close()


@pytest.fixture
def sqlite(path: Path) -> Iterator[Database]:
    opened = Database.open(path, create=True)
    yield opened
    opened.close()
