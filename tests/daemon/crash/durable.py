"""What a power loss would leave: every file as it was last synced, every directory with the names it had then.

The strictest disk that POSIX allows: nothing is on it that no fsync put there. A name whose file was never synced
is an empty file. The image is kept outside the data directory, by the process that writes there, as it goes.
"""

import json
import os
import shutil
from pathlib import Path

ROOT = "root"


class Durable:
    """Keeps the image of a data directory. The directory itself is on disk from the beginning."""

    def __init__(self, root: Path, image: Path) -> None:
        self._root = root.resolve()
        self._image = image
        self._serials: dict[int, str] = {}
        self._made = 0
        image.mkdir(parents=True, exist_ok=True)
        (image / "synced").mkdir(exist_ok=True)
        (image / "all").mkdir(exist_ok=True)
        (image / "files").mkdir(exist_ok=True)

    def synced(self, path: Path) -> None:
        """That file, or that directory's names, are on disk."""
        if path.is_dir():
            self._write_names(path, "synced")
        else:
            shutil.copyfile(path, self._image / "files" / self._serial(path))

    def knows(self, path: Path) -> bool:
        """Has the name been on disk for good?"""
        names = self._image / "synced" / self._serial(path.parent)
        return names.exists() and path.name in json.loads(names.read_text())

    def forget(self, path: Path) -> None:
        """The name goes: its number may be given to another file from now on."""
        if path.exists() and path.stat().st_nlink == 1:
            self._serials.pop(path.stat().st_ino, None)

    def note_names(self) -> None:
        """Note every name as it is at the end, synced or not."""
        for folder, _folders, _files in os.walk(self._root):
            self._write_names(Path(folder), "all")

    def _write_names(self, folder: Path, kind: str) -> None:
        names = {entry.name: (self._serial(Path(entry)), entry.is_dir()) for entry in os.scandir(folder)}
        (self._image / kind / self._serial(folder)).write_text(json.dumps(names))

    def _serial(self, path: Path) -> str:
        if path == self._root:
            return ROOT
        number = path.stat().st_ino
        if number not in self._serials:
            self._made += 1
            self._serials[number] = str(self._made)
        return self._serials[number]


def compose(image: Path, target: Path, *, names: str, folder: str = ROOT) -> None:
    """Make the directory that the power loss left. `names` is `synced`, or `all`: then only contents are lost."""
    target.mkdir()
    listing = image / names / folder
    for name, (serial, is_folder) in (json.loads(listing.read_text()) if listing.exists() else {}).items():
        kept = image / "files" / serial
        if is_folder:
            compose(image, target / name, names=names, folder=serial)
        elif kept.exists():
            shutil.copyfile(kept, target / name)
        else:
            (target / name).touch()
