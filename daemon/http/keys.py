"""Keys: who may ask. Each is an operator's, or one agent's.

- A key itself is never kept, told or logged: what is kept is its SHA-256, and errors name its line.
- Every key is compared, in constant time, whichever fits.
- A file of keys that others than its owner can read is refused, and so is one without a key.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from daemon.http.errors import Forbidden
from signals.records import AgentName

MIN_KEY_CHARS = 16
"""Shorter ones can be guessed."""

_AGENT: TypeAdapter[str] = TypeAdapter(AgentName)
_LINES = "each line is `operator KEY` or `agent NAME KEY`"


class BadKeys(Exception):
    """The keys cannot be used as given."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks: an operator, who speaks for everyone, or the agent whose key it is."""

    agent: str | None = None

    @property
    def is_operator(self) -> bool:
        """May it do everything?"""
        return self.agent is None

    def may_see(self, agent: str | None) -> bool:
        """May it see what is that agent's? What is nobody's is the operators'."""
        return self.is_operator or self.agent == agent

    def meant(self, agent: str | None) -> str | None:
        """The agent that a request is about: the one it names, else the key's own.

        Raises:
            Forbidden: it names another than the key's.
        """
        if self.agent is not None and agent not in {None, self.agent}:
            raise Forbidden(
                f"this key is {self.agent!r}'s and the request is about {agent!r}; "
                f"leave the agent out, or ask with {agent!r}'s key",
                param="agent",
            )
        return agent or self.agent


OPERATOR = Caller()


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    caller: Caller
    where: str


class Keys:
    """The keys of a service; without any, everyone who reaches it is an operator."""

    def __init__(self, known: Iterable[_Known] = ()) -> None:
        self._known = tuple(known)
        first: dict[bytes, str] = {}
        for key in self._known:
            if key.digest in first:
                raise BadKeys(f"{key.where} has the same key as {first[key.digest]}; give each line its own")
            first[key.digest] = key.where

    def __bool__(self) -> bool:
        return bool(self._known)

    @classmethod
    def of(cls, key: str | None, file: Path | None) -> Self:
        """An operator's key, and those of a file.

        Raises:
            BadKeys: one cannot be used, or the file is not its owner's alone.
        """
        own = [] if key is None else [_known(key, OPERATOR, "--api-key")]
        return cls([*own, *([] if file is None else _of_file(file))])

    def caller_with(self, key: str) -> Caller | None:
        """Whose key this is; nobody's is None."""
        digest, found = _digest(key), None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known.caller
        return found


def _of_file(path: Path) -> list[_Known]:
    lines = _owners_text(path).splitlines()
    given = [(number, line.split()) for number, line in enumerate(lines, start=1)]
    known = [
        _of_line(words, f"--api-key-file {path}, line {number}")
        for number, words in given
        if words and not words[0].startswith("#")
    ]
    if not known:
        raise BadKeys(f"--api-key-file {path} holds no key: {_LINES}")
    return known


def _owners_text(path: Path) -> str:
    """The text of a file that nobody but its owner can read or write."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise BadKeys(f"--api-key-file {path} has mode {mode:04o}, so others can use it: chmod 600 {path}")
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"--api-key-file {path} cannot be read: {error}") from error


def _of_line(words: list[str], where: str) -> _Known:
    match words:
        case ["operator", key]:
            return _known(key, OPERATOR, where)
        case ["agent", name, key]:
            return _known(key, Caller(_agent(name, where)), where)
        case _:
            raise BadKeys(f"{where} is not understood: {_LINES}")


def _agent(name: str, where: str) -> str:
    try:
        return _AGENT.validate_python(name)
    except ValidationError as error:
        raise BadKeys(f"{where}: {name!r} is no agent's name: {error.errors()[0]['msg']}") from error


def _known(key: str, caller: Caller, where: str) -> _Known:
    if len(key) < MIN_KEY_CHARS or not all("!" <= char <= "~" for char in key):
        raise BadKeys(
            f"{where}: a key is at least {MIN_KEY_CHARS} ASCII characters without spaces; "
            "this one is not: make one with `openssl rand -hex 32`"
        )
    return _Known(_digest(key), caller, where)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
