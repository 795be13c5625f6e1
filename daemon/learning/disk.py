"""What is on disk for good: a file's bytes once the file is synced, a name once the directory it stands in is."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return once a file's bytes, or a directory's names, outlast a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a directory, and those above it that are missing, to stay.

    Its own name is synced even when it is there: whoever made it may have died before that.
    """
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)
