"""What every room's tests share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_cache() -> Path:
    """Where converted weights are kept between runs."""
    return Path(__file__).parents[1] / ".venv" / "models"
