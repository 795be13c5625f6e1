"""Tool calls as models write them: JSON objects with a name and arguments. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Any

_FIRST_KEY = re.compile(r'\s*\{\s*(?:"(?:(?P<whole>[^"\\]*)"|[^"\\]*$)|$)')
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "function", "type", "id"})


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call as it was written: the tool's name and its arguments as JSON text, an object."""

    name: str
    arguments: str


def read_calls(text: str) -> list[NamedCall]:
    """The calls that a text consists of: one object, or a list of them. Empty where it is anything else."""
    value = _load(text)
    calls = [_call(entry) for entry in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def read_bare_call(text: str, tools: frozenset[str]) -> NamedCall | None:
    """The call of one of these tools that a text, without any tag, consists of."""
    value = _load(text)
    call = _call(value, needs_arguments=True)
    return call if call and call.name in tools else None


def begins_bare_call(text: str) -> bool:
    """May a text go on to be a call? Its first key decides."""
    found = _FIRST_KEY.match(text)
    return found is not None and (found["whole"] is None or found["whole"] in _CALL_KEYS)


def in_json_string(text: str) -> bool:
    """Does a JSON text end inside one of its strings?"""
    inside = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = inside
        elif character == '"':
            inside = not inside
    return inside


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _call(value: Any, *, needs_arguments: bool = False) -> NamedCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", None if needs_arguments else {}))
    if isinstance(arguments, str):
        arguments = _load(arguments)
    if not (isinstance(name, str) and name and _is_text(name) and isinstance(arguments, dict)):
        return None
    return NamedCall(name, _dump(arguments))


def _dump(arguments: dict[str, Any]) -> str:
    plain = json.dumps(arguments, ensure_ascii=False)
    return plain if _is_text(plain) else json.dumps(arguments)


def _is_text(text: str) -> bool:
    """Can UTF-8 carry it? JSON's escapes can spell what it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
