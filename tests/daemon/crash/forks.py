"""A process that has torch and a model in memory, and forks for each line it is told: both ends of it.

A fork costs a tenth of a second, where a process of its own costs five.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.weights import LoadedModel, load_model


@contextmanager
def forking(module: str, model: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that runs a module with that model, for as long as the block runs; it ends with its input."""
    command = [sys.executable, "-m", module, str(model)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def say_to(process: "subprocess.Popen[str]", line: str) -> None:
    """Tell it a line."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def the_model() -> LoadedModel:
    """The model that the process was started with. For a single thread: only one survives a fork."""
    torch.set_num_threads(1)
    return load_model(sys.argv[1], cache=Path(sys.argv[1]), say=lambda _line: None)


def status_of_fork(run: Callable[[], int]) -> int:
    """Fork, have the fork run that and exit with what it returns; its exit status, below 0 for a signal."""
    process = os.fork()
    if not process:
        os._exit(run())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
