"""The engine's tiny engine, for the benches' own instruments, and one thread for everything here."""

from collections.abc import Iterator

import pytest
import torch

from tests.engine.conftest import engine

__all__ = ["engine", "one_thread"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So small a model gains nothing from a second thread, and loses much where another program has the core."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the sides' processes
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
