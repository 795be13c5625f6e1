"""A PostgreSQL server of the tests' own: a cluster in a temporary directory, reached by a socket in it.

Nothing of it survives the tests, so it syncs nothing. Without the server's programs, what needs it is skipped.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")
_OPTIONS = "-c listen_addresses='' -c fsync=off -c full_page_writes=off -c unix_socket_directories="


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs; a new database has a URL of its own."""

    directory: Path
    user: str
    names: Iterator[int]

    def new_database(self) -> str:
        """Make an empty database; gives its URL."""
        name = f"ridealong{next(self.names)}"
        self.say(f"CREATE DATABASE {name}", database="postgres")
        return f"postgresql://{self.user}@/{name}?host={self.directory}"

    def say(self, command: str, *, database: str) -> str:
        """Run SQL with the server's own client; gives what it answers."""
        where = ["--host", str(self.directory), "--username", self.user, "--dbname", database]
        asked = [_program("psql"), "--no-psqlrc", "--tuples-only", "--quiet", *where, "--command", command]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def missing() -> str | None:
    """Why there can be no server here, if so."""
    lacking = [name for name in ("initdb", "pg_ctl", "psql") if not _program(name)]
    return f"PostgreSQL is not installed: {', '.join(lacking)} not found" if lacking else None


@contextmanager
def running() -> Iterator[Server]:
    """A server for as long as the block runs. It refuses to run as root, so then it runs as somebody else."""
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    # a socket's path must be short
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        directory = Path(folder)
        if os.geteuid() == 0:
            shutil.chown(directory, user)
        directory.chmod(0o755)
        data = directory / "data"
        _run(
            user,
            "initdb",
            "--pgdata",
            str(data),
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--no-locale",
            "--no-sync",
        )
        started = ["--pgdata", str(data), "--log", str(directory / "log"), "-o", f"{_OPTIONS}'{directory}'", "-w"]
        _run(user, "pg_ctl", *started, "start")
        try:
            yield Server(directory, user, count())
        finally:
            _run(user, "pg_ctl", "--pgdata", str(data), "--mode", "immediate", "-w", "stop")


def _program(name: str) -> str:
    """The path of a program of the server's, the newest version first; empty where there is none."""
    debian = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]), reverse=True)
    return str(debian[0]) if debian else shutil.which(name) or ""


def _run(user: str, program: str, *arguments: str) -> None:
    command: Sequence[str] = [_program(program), *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups", *command]
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    assert done.returncode == 0, f"{program} failed: {done.stderr}"
