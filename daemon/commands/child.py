"""A service of one's own, as a child process: for the demo and the benches, which measure the real thing."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 300.0
"""A first start converts the bundled model, which takes two minutes on a busy machine."""

POLL_SECONDS = 0.05

KEY_VARIABLES = "RIDEALONG_API_KEY"
"""How the names of the variables begin that give keys."""


class ChildFailed(Exception):
    """The child did not come to serve."""


@dataclass(frozen=True, slots=True)
class Child:
    """A service that serves at `url`; `start_seconds` is what it took from launch to serving."""

    url: str
    process: subprocess.Popen[bytes]
    start_seconds: float


@contextmanager
def serving_child(data_dir: Path, flags: Sequence[str]) -> Iterator[Child]:
    """A service on a free port with that data directory, stopped at the end of the block.

    Raises:
        ChildFailed: it ended, or did not serve in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "url"
        command = [sys.executable, "-m", "daemon.commands.cli", "serve", "--port", "0", "--ready-file", str(ready)]
        started = time.perf_counter()
        process = subprocess.Popen([*command, "--data-dir", str(data_dir), *flags], env=_environment())
        try:
            url = _await_ready(process, ready, started)
            yield Child(url, process, time.perf_counter() - started)
        finally:
            process.terminate()
            try:
                process.wait(timeout=START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """Ours, without keys: whoever starts a child asks it without one."""
    return {name: value for name, value in os.environ.items() if not name.startswith(KEY_VARIABLES)}


def _await_ready(process: subprocess.Popen[bytes], ready: Path, started: float) -> str:
    while not ready.exists():
        if process.poll() is not None:
            raise ChildFailed(f"the service ended with status {process.returncode} before it served")
        if time.perf_counter() - started > START_SECONDS:
            raise ChildFailed(f"the service did not serve within {START_SECONDS:.0f} seconds")
        time.sleep(POLL_SECONDS)
    return ready.read_text().strip()
