"""A database in a temporary file, closed at the end of each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = Database.open(path, create=True)
    yield opened
    opened.close()
