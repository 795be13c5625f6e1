"""Exported adapters on disk: each file whole at every moment, and there to stay once it was told.

An export is written aside, synced, and put in its place: as a directory where there was none, else file by file.
"""

import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load_file

from daemon.learning.disk import make_folder, sync
from engine.lora import tensors_sha256

_ASIDE = ".writing-"


def aside_of(directory: Path) -> Path:
    """Where to write what is to become that directory: a name beside it that is free."""
    make_folder(directory.parent)
    return directory.parent / f"{_ASIDE}{uuid.uuid4().hex}"


def place(aside: Path, directory: Path) -> None:
    """Put what was written aside in its place. A file of another name that is there already stays."""
    for file in aside.iterdir():
        sync(file)
    if directory.exists():
        for file in aside.iterdir():
            file.replace(directory / file.name)
        sync(directory)
    else:
        sync(aside)
        aside.rename(directory)
    sync(directory.parent)


def drop(aside: Path) -> None:
    """Delete what is left aside, if anything is."""
    shutil.rmtree(aside, ignore_errors=True)


def remove_export(directory: Path, *, sha: str) -> bool:
    """Remove an exported adapter, where it is still the one of that hash; returns whether it was."""
    tensors = directory / "adapter_model.safetensors"
    if not tensors.is_file() or tensors_sha256(load_file(tensors)) != sha:
        return False
    tensors.unlink()
    (directory / "adapter_config.json").unlink(missing_ok=True)
    with suppress(OSError):  # something else is in it
        directory.rmdir()
    return True


def sweep(exports: Path) -> None:
    """Delete what a crash left half written."""
    for aside in exports.glob(f"{_ASIDE}*"):
        drop(aside)
