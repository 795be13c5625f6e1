"""Column types that SQL does not have: token ids, targets and weights as bytes, and closed sets of words.

* Bytes are little-endian whatever the machine, so a file can be moved between machines.
* Four bytes a token: every vocabulary fits, and reading is one copy instead of a loop over variable lengths.
* What was said may hold any character, and goes into a column that says so.
* What is read equals what was written, to the bit: weights keep all 64.
"""

import math
import re
import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import JSON, BigInteger, Integer, LargeBinary, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

W = TypeVar("W", bound=StrEnum)

_SIGN = "\x10"
"""ASCII's data link escape, which nobody writes."""
_NUL = f"{_SIGN}0"
_MEANT = {_NUL: "\0", _SIGN * 2: _SIGN}
_ESCAPED = re.compile(f"{_SIGN}[{_SIGN}0]")

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
"""What a JSON column gives back."""

Json = JSON(none_as_null=True)
"""A JSON column where nothing is SQL's NULL, not the JSON word null."""

Counter = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit key that counts up: SQLite numbers rows by itself only when the type is spelled INTEGER."""


def token_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as they are stored, unsigned 32 bits each."""
    return struct.pack(f"<{len(ids)}I", *ids)


class TokenIds(TypeDecorator[tuple[int, ...]]):
    """Token ids, unsigned 32 bits each."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[int, ...] | None, _dialect: Dialect) -> bytes | None:
        """Ids to bytes."""
        return None if value is None else token_bytes(value)

    def process_result_value(self, value: bytes | None, _dialect: Dialect) -> tuple[int, ...] | None:
        """Bytes to ids."""
        return None if value is None else struct.unpack(f"<{len(value) // 4}I", value)


class TargetIds(TypeDecorator[tuple[int | None, ...]]):
    """Target ids of labelled rows, unsigned 32 bits each, shifted up by one: 0 is a row without a target."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[int | None, ...] | None, _dialect: Dialect) -> bytes | None:
        """Targets to bytes."""
        if value is None:
            return None
        return struct.pack(f"<{len(value)}I", *(0 if target is None else target + 1 for target in value))

    def process_result_value(self, value: bytes | None, _dialect: Dialect) -> tuple[int | None, ...] | None:
        """Bytes to targets."""
        if value is None:
            return None
        return tuple(code - 1 if code else None for code in struct.unpack(f"<{len(value) // 4}I", value))


class Weights(TypeDecorator[tuple[float, ...]]):
    """Weights of labelled rows, 64-bit floats."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[float, ...] | None, _dialect: Dialect) -> bytes | None:
        """Weights to bytes."""
        return None if value is None else struct.pack(f"<{len(value)}d", *value)

    def process_result_value(self, value: bytes | None, _dialect: Dialect) -> tuple[float, ...] | None:
        """Bytes to weights."""
        return None if value is None else struct.unpack(f"<{len(value) // 8}d", value)


class RowLosses(TypeDecorator[tuple[float | None, ...]]):
    """Losses of labelled rows, 64-bit floats; NaN is a row that has none."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[float | None, ...] | None, _dialect: Dialect) -> bytes | None:
        """Losses to bytes."""
        if value is None:
            return None
        return struct.pack(f"<{len(value)}d", *(math.nan if loss is None else loss for loss in value))

    def process_result_value(self, value: bytes | None, _dialect: Dialect) -> tuple[float | None, ...] | None:
        """Bytes to losses."""
        if value is None:
            return None
        return tuple(None if math.isnan(x) else x for x in struct.unpack(f"<{len(value) // 8}d", value))


class AnyText(TypeDecorator[str]):
    """Any text: PostgreSQL's holds no NUL, so that one is kept as an escape, and the escape's sign twice."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Text to what any database holds."""
        return None if value is None else value.replace(_SIGN, _SIGN * 2).replace("\0", _NUL)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> str | None:
        """What is held to text."""
        return None if value is None else _ESCAPED.sub(lambda found: _MEANT[found[0]], value)


class Word(TypeDecorator[W]):
    """A word of a closed set, stored as its text; another text in the column is an error when read."""

    impl = Text
    cache_ok = True

    def __init__(self, words: type[W]) -> None:
        super().__init__()
        self.words = words

    def process_bind_param(self, value: W | None, _dialect: Dialect) -> str | None:
        """A word to its text."""
        return None if value is None else self.words(value).value

    def process_result_value(self, value: str | None, _dialect: Dialect) -> W | None:
        """Text to the word."""
        return None if value is None else self.words(value)
