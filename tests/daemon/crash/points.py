"""Every point at which the process touches its data directory, counted; the process kills itself at one of them.

A point lies before a thing is done, or after it where nothing else would come between it and its effect, or in the
middle of a write, of which the first half is on disk. Only a test's child installs this.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Session

import daemon.learning.snapshots as snapshots_module
import engine.lora as lora_module
from tests.daemon.crash.durable import Durable

T = TypeVar("T")
WRITER_THREAD = "store-writer"


class Points:
    """Counts the points under a directory; at number `kill_at` it notes the kind and kills the process."""

    def __init__(self, root: Path, *, kill_at: int | None, note: Path, durable: Durable | None) -> None:
        self.root = root.resolve()
        self._kill_at = kill_at
        self._note = note
        self._durable = durable
        self._reached: list[str] = []
        self._lock = threading.Lock()

    def concerns(self, path: str | Path) -> bool:
        """Is the path in the directory?"""
        return Path(os.path.abspath(path)).is_relative_to(self.root)  # noqa: PTH100 - resolve() follows links

    def reach(self, kind: str, *, half: Callable[[], object] | None = None) -> None:
        """A point; `half` does the first half of what comes next, if it is here that the process dies."""
        with self._lock:
            self._reached.append(kind)
            if len(self._reached) == self._kill_at:
                if half is not None:
                    half()
                self._die(kind)

    @contextmanager
    def around(self, kind: str) -> Iterator[None]:
        """A point before and a point after."""
        self.reach(f"before {kind}")
        yield
        self.reach(f"after {kind}")

    def lasting(self, note: Callable[[Durable], None]) -> None:
        """Say what is on disk for good now. No kill comes in the middle of it."""
        if self._durable is not None:
            with self._lock:
                note(self._durable)

    def reached(self) -> list[str]:
        """The kinds of the points so far, in order."""
        with self._lock:
            return [*self._reached]

    def _die(self, kind: str) -> None:
        self._note.write_text(kind)
        if self._durable is not None:
            self._durable.note_names()
        os.kill(os.getpid(), signal.SIGKILL)


def install(points: Points) -> None:
    """Have every change that Python makes to the directory be a point, and every commit of the writer."""
    _watch_descriptors(points)
    _watch_names(points)
    _watch_files(points)

    @event.listens_for(Session, "before_commit")
    def before(_session: Session) -> None:
        if threading.current_thread().name.startswith(WRITER_THREAD):
            points.reach("before commit")

    @event.listens_for(Session, "after_commit")
    def after(_session: Session) -> None:
        if threading.current_thread().name.startswith(WRITER_THREAD):
            points.reach("after commit")


def _watch_descriptors(points: Points) -> None:
    fsync, write, ftruncate = os.fsync, os.write, os.ftruncate

    def watched_fsync(handle: int) -> None:
        path = _path_of(handle)
        if path is None or not points.concerns(path):
            return fsync(handle)
        with points.around("fsync of a directory" if path.is_dir() else "fsync"):
            fsync(handle)
            points.lasting(lambda durable: durable.synced(path))
        return None

    def watched_write(handle: int, data: Any) -> int:
        path = _path_of(handle)
        if path is not None and points.concerns(path):
            points.reach("before write")
            points.reach("torn write", half=lambda: write(handle, data[: len(data) // 2]))
        return write(handle, data)

    def watched_truncate(handle: int, length: int) -> None:
        path = _path_of(handle)
        if path is not None and points.concerns(path):
            points.reach("before truncate")
        ftruncate(handle, length)

    os.fsync, os.write, os.ftruncate = watched_fsync, watched_write, watched_truncate  # type: ignore[assignment]


def _watch_names(points: Points) -> None:
    for kind, name in (("rename", "replace"), ("rename", "rename"), ("mkdir", "mkdir")):
        _watch_name(points, kind, name, forget_from=1)
    for kind, name in (("unlink", "unlink"), ("unlink", "remove"), ("rmdir", "rmdir")):
        _watch_name(points, kind, name, forget_from=0)


def _watch_name(points: Points, kind: str, name: str, *, forget_from: int) -> None:
    """Watch a function of `os`; its paths from `forget_from` on stand for their files no longer."""
    original = getattr(os, name)

    def watched(*paths: Any, **options: Any) -> None:
        if not all(isinstance(path, str | Path) for path in paths[:1]) or not points.concerns(paths[0]):
            original(*paths, **options)
            return
        with points.around(kind):
            for gone in paths[forget_from:]:
                if isinstance(gone, str | Path):
                    points.lasting(lambda durable, gone=gone: durable.forget(Path(gone)))  # type: ignore[misc]
            original(*paths, **options)

    setattr(os, name, watched)


def _watch_files(points: Points) -> None:
    """Whole files written by code that is not Python's, or through a buffer."""

    def whole(original: Callable[..., T], path_at: int) -> Callable[..., T]:
        def watched(*given: Any, **options: Any) -> T:
            path = Path(given[path_at])
            if not points.concerns(path):
                return original(*given, **options)
            points.reach("before write")
            points.reach("torn write", half=lambda: _halve(path, after=lambda: original(*given, **options)))
            return original(*given, **options)

        return watched

    snapshots_module.save_file = whole(snapshots_module.save_file, 1)  # type: ignore[attr-defined]
    lora_module.save_file = whole(lora_module.save_file, 1)  # type: ignore[attr-defined]
    Path.write_text = whole(Path.write_text, 0)  # type: ignore[method-assign]


def _halve(path: Path, *, after: Callable[[], object]) -> None:
    after()
    os.truncate(path, path.stat().st_size // 2)


def _path_of(handle: int) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115 - a pipe's is no path
    except OSError:
        return None
