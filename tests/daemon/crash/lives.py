"""One crash after the other: a service that is killed at a point, what it left, and its next life on that."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.daemon.crash import books
from tests.daemon.crash.agent import Agent, Diary, Gone, end_of
from tests.daemon.crash.child import Life
from tests.daemon.crash.durable import compose
from tests.daemon.crash.forks import forking, say_to


@dataclass(frozen=True, slots=True)
class Born:
    """A service that serves."""

    url: str
    process: int
    shadow: str | None


class Nursery:
    """The process that forks services: see `child.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._hear()  # it has its model

    def begin(self, life: Life) -> Born | int:
        """Begin a life: the service once it serves, or its exit status if it never does."""
        say_to(self._process, json.dumps(asdict(life)))
        told = self._hear()
        return int(told["ended"]) if "ended" in told else Born(**told)

    def end(self, born: Born, *, ask: bool = True) -> int:
        """See a service that serves to its end, asking for it or not; its exit status, below 0 for a signal."""
        if ask:
            os.kill(born.process, signal.SIGTERM)
        return int(self._hear()["ended"])

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the forking process has ended"
        return json.loads(line)


@contextmanager
def nursery(model: Path) -> Iterator[Nursery]:
    """A forking process with that model, for as long as the block runs."""
    with forking("tests.daemon.crash.child", model) as process:
        yield Nursery(process)


class Crash:
    """A service killed at one point in a folder of its own, and what comes after."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self.data_dir = folder / "data"
        self.diary = Diary()
        self.data_dir.mkdir(parents=True)

    def day(self, kill_at: int | None, *, image: bool = False, spoil: tuple[str, ...] = ()) -> str | None:
        """Live until the point; its kind, or `None` if it was not reached and the service was told to stop."""
        life = Life(str(self.data_dir), str(self._folder), kill_at, image, list(spoil))
        status = self._live(life)
        noted = self._folder / "killed"
        kind = noted.read_text() if noted.exists() else None
        assert status == (0 if kind is None else -signal.SIGKILL), f"the service ended with {status}"
        return kind

    def reached(self) -> list[str]:
        """The kinds of all points of a life that was not killed."""
        kinds: list[str] = json.loads((self._folder / "points").read_text())
        return kinds

    def lose_power(self, *, names: str) -> None:
        """The directory as a power loss at that point would have left it: see `durable.py`."""
        shutil.rmtree(self.data_dir)
        compose(self._folder / "image", self.data_dir, names=names)

    def restart(self, kill_at: int) -> bool:
        """Start on what is left, to be killed again at a point; `False` if it served before it came there."""
        born = self._nursery.begin(Life(str(self.data_dir), str(self._folder), kill_at))
        if not isinstance(born, Born):
            assert born == -signal.SIGKILL, f"it does not start again: {born}"
            return True
        os.kill(born.process, signal.SIGKILL)
        self._nursery.end(born, ask=False)
        return False

    def recover(self) -> None:
        """Check what is left, start on it, let the agent finish, and check again."""
        before = books.check(self._copy(), self.diary)
        born = self._nursery.begin(Life(str(self.data_dir), str(self._folder)))
        assert isinstance(born, Born), f"it does not start again: {born}"
        assert born.shadow == before.shadow, "the shadow that was loaded is not the one on disk"
        agent = Agent(born.url, self.diary)
        agent.evening()
        agent.close()
        assert self._nursery.end(born) == 0
        states = books.check(self.data_dir, self.diary).states
        books.check_rest(self.data_dir)
        wrong = {name: end for name, (kind, end) in states.items() if end != end_of(name, kind)}
        assert not wrong, f"not what should have become of them: {wrong}"

    def _live(self, life: Life) -> int:
        born = self._nursery.begin(life)
        if not isinstance(born, Born):
            return born
        agent = Agent(born.url, self.diary)
        try:
            agent.day()
            return self._nursery.end(born)
        except Gone:
            return self._nursery.end(born, ask=False)
        finally:
            agent.close()

    def _copy(self) -> Path:
        """A copy to look at: a look at SQLite's files changes them."""
        copy = self._folder / "looked-at"
        shutil.copytree(self.data_dir, copy)
        return copy
