"""Snapshots of shadows on disk: named by content, written whole, readable after any crash.

- A file appears under its name only once its bytes are on disk (written aside, synced, renamed, directory
  synced), so a ledger row that names it never points at half a file.
- A name is the hash of the content: writing the same snapshot twice is one file, and a read is checked.
- A snapshot says what model, rank and alpha it was made for, and is read for no other.
"""

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from daemon.http.errors import SnapshotDamaged
from daemon.learning.disk import make_folder, sync
from engine.lora import tensors_sha256

_FOLDER = "adapters"


class Snapshots:
    """The snapshot files under a data directory. Names are relative to it."""

    def __init__(self, data_dir: Path, *, made_for: Mapping[str, str]) -> None:
        self._root = data_dir
        self.made_for = {**made_for}
        """The model, the rank and the alpha that they are made for."""
        self._metadata = {"format": "pt", **made_for}
        make_folder(data_dir / _FOLDER)

    @staticmethod
    def name_of(tensors: Mapping[str, Tensor]) -> str:
        """The name that a snapshot has, written or not."""
        return f"{_FOLDER}/{tensors_sha256(tensors)}.safetensors"

    def write(self, tensors: Mapping[str, Tensor]) -> str:
        """Put a snapshot on disk; returns its name once it is there to stay."""
        name = self.name_of(tensors)
        target = self._root / name
        if not target.exists():
            self._put(tensors, target)
        sync(target.parent)
        return name

    def _put(self, tensors: Mapping[str, Tensor], target: Path) -> None:
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix="writing-")
        os.close(handle)
        try:
            save_file(dict(tensors), aside, metadata=self._metadata)
            sync(Path(aside))
            Path(aside).replace(target)
        finally:
            Path(aside).unlink(missing_ok=True)

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors of a snapshot.

        Raises:
            SnapshotDamaged: the file is missing, or holds something else than its name says.
        """
        path = self.check(name)
        tensors = load_file(path)
        if tensors_sha256(tensors) != path.stem:
            raise SnapshotDamaged(f"the snapshot {name} in {self._root} has changed; restore it from a backup")
        return tensors

    def check(self, name: str) -> Path:
        """The snapshot's file.

        Raises:
            SnapshotDamaged: it is missing, or was made for another model, rank or alpha.
        """
        path = self._root / name
        if not path.is_file():
            raise SnapshotDamaged(f"the snapshot {name} is missing from {self._root}; restore it from a backup")
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
        for key, value in self._metadata.items():
            if found.get(key) != value:
                raise SnapshotDamaged(
                    f"the adapters in {self._root} were made for {key} {found.get(key)}, {key} {value} was given; "
                    "give what they were made for, or another --data-dir"
                )
        return path

    def here(self, names: Collection[str]) -> set[str]:
        """Those of the snapshots that are in this data directory."""
        return {name for name in names if (self._root / name).is_file()}

    def delete(self, name: str) -> None:
        """Delete a snapshot that nothing names any more."""
        remove(self._root, [name])

    def sweep(self, keep: Collection[str]) -> int:
        """Delete every snapshot that isn't named, and what a crash left half written; returns how many."""
        return sweep(self._root, keep)


def remove(data_dir: Path, names: Collection[str]) -> None:
    """Delete snapshots of a data directory that nothing names any more."""
    for name in names:
        (data_dir / name).unlink(missing_ok=True)


def sweep(data_dir: Path, keep: Collection[str]) -> int:
    """The same for a data directory, whatever its snapshots were made for."""
    folder = data_dir / _FOLDER
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    stray = [path for path in files if f"{_FOLDER}/{path.name}" not in keep]
    for path in stray:
        path.unlink(missing_ok=True)
    return len(stray)
