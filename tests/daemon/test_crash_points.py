"""A service is killed wherever it touches its disk, and loses its power there: nothing acknowledged is lost.

Each point is a service of its own, of which `tests/daemon/crash` knows how it lives, dies and is looked at. What
must be true of it afterwards is in `crash/books.py`: every acknowledged signal is there and trained once; the
chain of hashes is whole; the shadow is the ledger's last step byte for byte, on disk and as it is loaded again;
every version has its snapshot; nothing is left half written; each signal ends as it would have without the crash.

`make crash` tries them all but the writes, of which it takes every fourth, and prints how many by kind.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import pytest

from tests.daemon.crash.lives import Crash, Nursery, nursery

T = TypeVar("T")
FULL = "CRASH_EVERY" in os.environ
EVERY = int(os.environ.get("CRASH_EVERY", "4"))
"""Of how many writes one is tried."""

SHORT = 2
"""Points of each kind that are tried where not all are."""

WORKERS = 2

pytestmark = pytest.mark.timeout(3600 if FULL else 300)


class Places:
    """Where crashes happen: a few forking processes, and a folder for each crash."""

    def __init__(self, nurseries: Sequence[Nursery], folder: Path) -> None:
        self._free: SimpleQueue[Nursery] = SimpleQueue()
        self._folder = folder
        for own in nurseries:
            self._free.put(own)

    def crash(self, name: str, run: Callable[[Crash], T]) -> T:
        """Run in a folder of that name."""
        own = self._free.get()
        try:
            return run(Crash(own, self._folder / name))
        finally:
            self._free.put(own)

    def each(self, points: Sequence[int], run: Callable[[Crash, int], str | None]) -> "Counter[str | None]":
        """Run at each point, a few at a time; how many by kind."""

        def one(point: int) -> str | None:
            try:
                return self.crash(f"{point}", lambda crash: run(crash, point))
            except Exception as error:
                error.add_note(f"at point {point}")
                raise

        with ThreadPoolExecutor(WORKERS) as threads:
            return Counter(threads.map(one, points))


@pytest.fixture(scope="module")
def nurseries(tiny_chat: Path) -> Iterator[list[Nursery]]:
    with ExitStack() as stack:
        yield [stack.enter_context(nursery(tiny_chat)) for _ in range(WORKERS)]


@pytest.fixture
def places(nurseries: list[Nursery], tmp_path: Path) -> Places:
    return Places(nurseries, tmp_path)


@pytest.fixture(scope="module")
def kinds(nurseries: list[Nursery], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The kind of every point of a day without a crash, in order."""
    crash = Crash(nurseries[0], tmp_path_factory.mktemp("whole") / "day")
    assert crash.day(None) is None
    reached = crash.reached()
    crash.recover()
    return reached


def chosen(kinds: list[str], *, every: int = EVERY, short: int = SHORT) -> list[int]:
    """The points to try, the first being 1: all of each kind and every so many writes, or a spread of a few."""
    points = []
    for kind in sorted(set(kinds)):
        own = [point for point, found in enumerate(kinds, 1) if found == kind]
        step = max(1, -(-len(own) // short)) if not FULL else every if kind.endswith("write") else 1
        points += own[step // 2 :: step]
    return sorted(points)


def tell(what: str, tried: "Counter[str | None]") -> None:
    """Print how many were tried by kind."""
    kinds = ", ".join(f"{count} {kind or 'not reached'}" for kind, count in sorted(tried.items(), key=str))
    print(f"\n{what}: {sum(tried.values())} points: {kinds}")  # noqa: T201 - what `make crash` is run for


def test_killed_at_any_point_it_loses_nothing_and_trains_nothing_twice(kinds: list[str], places: Places) -> None:
    def run(crash: Crash, point: int) -> str | None:
        kind = crash.day(point)
        crash.recover()
        return kind

    tried = places.each(chosen(kinds), run)
    tell("killed", tried)
    assert {"before fsync", "torn write", "after rename", "before commit", "after commit"} <= tried.keys()


@pytest.mark.parametrize("names", ["synced", "all"])
def test_without_power_at_any_point_it_loses_nothing_that_it_acknowledged(
    kinds: list[str], places: Places, names: str
) -> None:
    def run(crash: Crash, point: int) -> str | None:
        kind = crash.day(point, image=True)
        crash.lose_power(names=names)
        crash.recover()
        return kind

    tried = places.each(chosen(kinds, every=8 * EVERY, short=1), run)
    tell(f"without power, names: {names}", tried)
    assert len(tried) > 5


@pytest.mark.parametrize(
    ("left_out", "why"),
    [("full", "a turn is lost|lost:|the ledger is lost"), ("folder", "is missing"), ("file", "is no snapshot")],
)
def test_without_one_of_the_syncs_a_power_loss_costs_something(
    kinds: list[str], places: Places, left_out: str, why: str
) -> None:
    def run(crash: Crash) -> None:
        crash.day(len(kinds) * 2 // 3, image=True, spoil=(left_out,))
        crash.lose_power(names="synced")
        with pytest.raises(AssertionError, match=why):
            crash.recover()

    places.crash(left_out, run)


def test_killed_again_while_it_takes_up_what_a_kill_left_it_loses_nothing(
    kinds: list[str], places: Places
) -> None:
    commits = [point for point, kind in enumerate(kinds, 1) if kind == "before commit"]

    def run(crash: Crash, point: int) -> str | None:
        crash.day(commits[point * 7 % len(commits)])
        again = crash.restart(point)
        crash.recover()
        return "while starting" if again else None

    tried = places.each(range(1, 200, 2) if FULL else range(2, 20, 4), run)
    tell("killed again", tried)
    assert tried["while starting"]
