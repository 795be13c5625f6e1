"""`ridealong forget` is killed wherever it touches the disk: all is forgotten or nothing, and again is enough.

`make crash` tries every point but the writes, of which it takes every fourth.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.daemon.conftest import AGENT, Start
from tests.daemon.crash.forgetting import Attempt
from tests.daemon.crash.forks import forking, say_to
from tests.daemon.scripted import Says
from tests.daemon.story import adapters, command, forgot, live
from tests.daemon.test_crash_points import chosen, tell
from tests.daemon.test_forget import shadows, snapshots, verified, written

FLAGS = ["--context", "cellar"]
GONE = ("old copper lamps", "what is in the cellar")

pytestmark = pytest.mark.timeout(3600 if "CRASH_EVERY" in os.environ else 300)


class Forks:
    """The process that forks `ridealong forget`, and what it did last."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self.note = folder / "note"

    def forget(self, data_dir: Path, *, kill_at: int | None = None) -> int:
        """Forget; the exit status."""
        attempt = Attempt(str(data_dir), FLAGS, str(self.note), kill_at)
        say_to(self._process, json.dumps(asdict(attempt)))
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture
def forks(tiny_chat: Path, tmp_path: Path) -> Iterator[Forks]:
    with forking("tests.daemon.crash.forgetting", tiny_chat) as process:
        yield Forks(process, tmp_path)


async def test_killed_at_any_point_it_has_forgotten_all_or_nothing_and_again_is_enough(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, forks: Forks
) -> None:
    data, whole = tmp_path / "data", tmp_path / "whole"
    await live(start, says, data)
    shutil.copytree(data, whole)
    assert forks.forget(whole) == 0
    states = [(adapters(each), shadows(each)) for each in (data, whole)]
    tried, kinds = Counter[str | None](), json.loads(forks.note.read_text())
    for point in chosen(kinds, short=1):
        place = tmp_path / f"{point}"
        shutil.copytree(data, place)
        assert forks.forget(place, kill_at=point) < 0, f"point {point} was not reached"
        tried[forks.note.read_text()] += 1
        assert (adapters(place), shadows(place)) in states, f"at point {point}"
        assert verified(place) is None, f"at point {point}"
        assert forks.forget(place) == 0
        assert (adapters(place), shadows(place)) == states[1], f"at point {point}"
        assert (written(place, *GONE), len(forgot(place))) == ([], 1), f"at point {point}"
        assert snapshots(place) == {row[2] for row in adapters(place)}, f"at point {point}"
        shutil.rmtree(place)
    tell("forgetting killed", tried)
    assert {"before unlink", "after rename"} <= tried.keys()
    assert command("replay", whole, tiny_chat, "--agent", AGENT) == 0
