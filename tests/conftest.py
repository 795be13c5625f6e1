"""What every room's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgresql import Server, missing, running


@pytest.fixture(scope="session")
def model_cache() -> Path:
    """Where converted weights are kept between runs."""
    return Path(__file__).parents[1] / ".venv" / "models"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server; where its programs are missing the test is skipped."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    with running() as server:
        yield server
