"""SQLite's own writes, syncs, truncations and deletions as points: between SQLite's C code and the system.

The default VFS is asked to open a file, and the file's table of methods is replaced by a copy, some of it ours.
"""

import _sqlite3
import ctypes
from pathlib import Path
from typing import Any

from tests.daemon.crash.durable import Durable
from tests.daemon.crash.points import Points

_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """The head of `sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _Open),
        ("delete", _Delete),
    )


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", _Write),
        ("truncate", _Truncate),
        ("sync", _Sync),
        ("others", ctypes.c_void_p * 13),
    )


class _File(ctypes.Structure):
    """The head of `sqlite3_file`."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


_kept: list[Any] = []
"""What C holds pointers to, for as long as the process lives."""


def install(points: Points) -> None:
    """Watch what SQLite does in the directory, in every connection opened from now on."""
    find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    find.restype = ctypes.POINTER(_Vfs)
    vfs = find(None).contents
    open_file, delete = _original(vfs.open, _Open), _original(vfs.delete, _Delete)

    def watched_open(own: int, name: int | None, file: int, flags: int, told: int) -> int:
        result: int = open_file(own, name, file, flags, told)
        path = None if name is None else Path(ctypes.string_at(name).decode())
        head = _File.from_address(file)
        if not result and head.methods and path is not None and points.concerns(path):
            head.methods = ctypes.pointer(_watched(head.methods.contents, path, points))
        return result

    def watched_delete(own: int, name: int, sync_folder: int) -> int:
        path = Path(ctypes.string_at(name).decode())
        if not points.concerns(path):
            return int(delete(own, name, sync_folder))
        with points.around("unlink"):
            points.lasting(lambda durable: durable.forget(path))
            result: int = delete(own, name, sync_folder)
            if sync_folder:
                points.lasting(lambda durable: durable.synced(path.parent))
        return result

    vfs.open, vfs.delete = _keep(_Open(watched_open)), _keep(_Delete(watched_delete))


def _watched(original: _Methods, path: Path, points: Points) -> _Methods:
    write, truncate = _original(original.write, _Write), _original(original.truncate, _Truncate)
    sync = _original(original.sync, _Sync)

    def watched_write(file: int, data: int, count: int, offset: int) -> int:
        points.reach("before write")
        points.reach("torn write", half=lambda: write(file, data, count // 2, offset))
        return int(write(file, data, count, offset))

    def watched_truncate(file: int, size: int) -> int:
        points.reach("before truncate")
        return int(truncate(file, size))

    def watched_sync(file: int, flags: int) -> int:
        with points.around("fsync"):
            result: int = sync(file, flags)
            points.lasting(lambda durable: durable.synced(path))
            if path.name.endswith(("-wal", "-journal")):  # SQLite syncs their directory with their first sync
                points.lasting(lambda durable: _sync_folder_once(durable, path))
        return result

    methods = _Methods.from_buffer_copy(original)
    methods.write, methods.truncate = _keep(_Write(watched_write)), _keep(_Truncate(watched_truncate))
    methods.sync = _keep(_Sync(watched_sync))
    _keep(methods)
    return methods


def _sync_folder_once(durable: Durable, path: Path) -> None:
    if not durable.knows(path):
        durable.synced(path.parent)


def _original(field: Any, kind: Any) -> Any:
    """A function of its own: the field's value follows what is assigned to the field."""
    return kind(ctypes.cast(field, ctypes.c_void_p).value)


def _keep(made: Any) -> Any:
    _kept.append(made)
    return made
