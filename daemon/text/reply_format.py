"""A reply's text taken apart as it comes: what is said, what was thought before it, which tools it calls. Pure.

- The format is found in the model's chat template: the tags around reasoning, the tags around a tool call.
- However the text is cut into pieces, the parts are the same; half a tag is never given out.
- What cannot be read as a tool call comes out as content. Only whitespace beside a tag is ever dropped.
- Tools are called only where tools were given; a tag in any other reply is text like any other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from daemon.text.tool_calls import NamedCall, begins_bare_call, in_json_string, read_bare_call, read_calls


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of what the reply says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it said anything."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, whole; `arguments` is JSON text, an object."""

    id: str
    name: str
    arguments: str


Part = Content | Reasoning | ToolCall


@dataclass(frozen=True, slots=True)
class Tags:
    """What opens and what closes a section of a reply."""

    open: str
    close: str


THINK = Tags("<think>", "</think>")
TOOL_CALL = Tags("<tool_call>", "</tool_call>")

_ASKS_FOR_PARAMETERS = re.compile(r'\{"name": [^}]*"parameters": ')
"""How Llama's templates describe a call."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model marks reasoning and tool calls. Without call tags, a call is a reply that is one JSON object.

    `arguments_key` is the key under which the template tells the model to write a call's arguments.
    """

    reasoning: Tags | None = None
    calls: Tags | None = None
    arguments_key: str = "arguments"

    @classmethod
    def of_template(cls, template: str | None) -> "ReplyFormat":
        """The format that a chat template's text tells of."""
        text = template or ""
        return cls(
            reasoning=THINK if THINK.close in text or THINK.open in text else None,
            calls=TOOL_CALL if TOOL_CALL.open in text else None,
            arguments_key="parameters" if _ASKS_FOR_PARAMETERS.search(text) else "arguments",
        )

    def opened_by(self, prompt: str) -> bool:
        """Does a rendered prompt end in the tag that opens reasoning, so that the reply begins inside it?"""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.open)

    def parser(self, *, prompt: str, tools: frozenset[str], new_id: Callable[[], str]) -> "ReplyParser":
        """A parser for one reply to a rendered prompt, with the names of the tools that it may call."""
        return ReplyParser(self, opened=self.opened_by(prompt), tools=tools, new_id=new_id)


class _Mode(Enum):
    """Where in the reply the held text begins."""

    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    BARE_CALL = auto()


class ReplyParser:
    """Takes one reply apart: `push` its pieces, then `finish`."""

    def __init__(
        self, format_: ReplyFormat, *, opened: bool, tools: frozenset[str], new_id: Callable[[], str]
    ) -> None:
        self._reasoning = format_.reasoning
        self._calls = format_.calls if tools else None
        self._tools = tools
        self._new_id = new_id
        self._mode = _Mode.REASONING if opened else _Mode.START
        self._held = ""
        self._before_call = ""
        self._after_tag = opened
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """Take the next piece of the reply; returns what has become certain."""
        self._held += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> list[Part]:
        """The parts still held back, now that nothing follows."""
        while self._held and self._last_step():
            while self._step():
                pass
        return self._take()

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _step(self) -> bool:
        """Go on with what is held; True if it may go on further."""
        match self._mode:
            case _Mode.START:
                return self._start()
            case _Mode.REASONING:
                return self._reason()
            case _Mode.CONTENT:
                return self._say()
            case _Mode.CALL:
                return self._call()
            case _Mode.BARE_CALL:
                return self._bare_call()

    def _last_step(self) -> bool:
        """Settle what is held at the reply's end; True if text is left to go on with."""
        held, mode, self._mode = self._held, self._mode, _Mode.CONTENT
        match mode:
            case _Mode.REASONING:
                self._held = ""
                self._parts.append(Reasoning(held))
            case _Mode.CALL if calls := read_calls(held):
                self._held = ""
                self._called(calls)
            case _Mode.CALL:
                self._give_up_call()
                return True
            case _Mode.BARE_CALL if call := read_bare_call(held, self._tools):
                self._held = ""
                self._called([call])
            case _Mode.BARE_CALL | _Mode.START:
                return True
            case _Mode.CONTENT:
                self._held = ""
                if not (self._after_tag and held.isspace()):
                    self._parts.append(Content(held))
        return False

    def _start(self) -> bool:
        """Nothing has been said yet: does the reply begin with reasoning, with a call, or with words?"""
        begun, tags = self._held.lstrip(), self._reasoning
        if self._after_tag:
            self._held = begun
        elif tags is None and not self._tools:
            self._mode = _Mode.CONTENT
            return True
        if not begun or (tags and begun != tags.open and tags.open.startswith(begun)):
            return False
        if tags and begun.startswith(tags.open):
            self._enter(_Mode.REASONING, begun[len(tags.open) :])
        elif self._tools and begun.startswith("{"):
            self._mode = _Mode.BARE_CALL
        else:
            self._mode = _Mode.CONTENT
        return True

    def _reason(self) -> bool:
        tags = self._reasoning
        assert tags is not None, "reasoning without its tags"
        if self._after_tag:
            self._held = self._held.lstrip()
        at = self._held.find(tags.close)
        if at < 0:
            self._release(Reasoning, tags.close)
            return False
        if thought := self._held[:at].rstrip():
            self._parts.append(Reasoning(thought))
        self._reasoning = None
        self._enter(_Mode.START, self._held[at + len(tags.close) :])
        return True

    def _say(self) -> bool:
        if self._calls is None:
            self._release_all()
            return False
        at = self._held.find(self._calls.open)
        if at < 0:
            self._release(Content, self._calls.open)
            return False
        said = self._held[:at].rstrip()
        if said:
            self._parts.append(Content(said))
        self._before_call = self._held[len(said) : at]
        self._enter(_Mode.CALL, self._held[at + len(self._calls.open) :])
        return True

    def _call(self) -> bool:
        assert self._calls is not None, "a call without its tags"
        at = self._held.find(self._calls.close)
        while at >= 0 and in_json_string(self._held[:at]):
            at = self._held.find(self._calls.close, at + 1)
        if at < 0:
            return False
        calls = read_calls(self._held[:at])
        if calls:
            self._called(calls)
            self._enter(_Mode.CONTENT, self._held[at + len(self._calls.close) :])
        else:
            self._give_up_call()
            self._mode = _Mode.CONTENT
        return True

    def _bare_call(self) -> bool:
        if begins_bare_call(self._held):
            return False
        self._mode = _Mode.CONTENT
        return True

    def _enter(self, mode: _Mode, rest: str) -> None:
        """A tag has been read; the whitespace after it may fall away with it."""
        self._mode, self._held, self._after_tag = mode, rest, True

    def _called(self, calls: Sequence[NamedCall]) -> None:
        self._parts += [ToolCall(self._new_id(), call.name, call.arguments) for call in calls]
        self._after_tag = True

    def _give_up_call(self) -> None:
        """What looked like a call is none: its tag was text, and what follows is read again."""
        assert self._calls is not None, "a call without its tags"
        self._parts.append(Content(self._before_call + self._calls.open))
        self._after_tag = False

    def _release(self, kind: type[Content | Reasoning], tag: str) -> None:
        """Give out what is held, less what may yet be the tag, or the whitespace before it."""
        kept = self._held[: len(self._held) - _may_be(tag, self._held)].rstrip()
        if kept:
            self._parts.append(kind(kept))
            self._held = self._held[len(kept) :]
            self._after_tag = False

    def _release_all(self) -> None:
        if self._held:
            self._parts.append(Content(self._held))
            self._held = ""


def _may_be(tag: str, text: str) -> int:
    """How many of the last characters are the beginning of a tag."""
    lengths = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(tag[:length])), 0)
