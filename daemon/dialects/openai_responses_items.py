"""Input items as OpenAI's responses write them, and as the chat template reads them.

- An input that is a string is one message of the user's; a content that is a string is one part.
- What one reply came in, its reasoning, its message and its calls, is one message of the assistant's again.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from daemon.dialects.openai_messages import FunctionCall
from daemon.dialects.strict import Body, GivenOnly
from signals.records import JsonObject, Message, Text

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_PARTS = ("input_text", "output_text")


class InputText(Body):
    """A piece of what is told to the model."""

    type: Literal["input_text"]
    text: Text


class OutputText(GivenOnly):
    """A piece of what the model said. It comes back as it was told, log probabilities included."""

    type: Literal["output_text"]
    text: Text
    annotations: Annotated[tuple[JsonObject, ...], Field(max_length=0)] = ()
    logprobs: tuple[JsonObject, ...] = ()


class ReasoningText(Body):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: Text


def _as_parts(content: object) -> object:
    """A string is one part; what isn't text is refused by its name."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    for part in content if isinstance(content, list) else []:
        _check_kind(part, _PARTS, "this lane reads text only; send parts of type")
    return content


def _as_items(given: object) -> object:
    """A string is one message; an item that has a role and no type is a message too."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    for item in given:
        _check_kind(item, _ITEMS, "this lane takes items of type")
    return [{"type": "message"} | item if isinstance(item, dict) and "role" in item else item for item in given]


def _check_kind(entry: object, kinds: Sequence[str], takes: str) -> None:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if isinstance(kind, str) and kind not in kinds:
        raise ValueError(f"{kind} is not supported: {takes} {', '.join(kinds)}")


Part = Annotated[InputText | OutputText, Field(discriminator="type")]
Parts = Annotated[list[Part], BeforeValidator(_as_parts)]


class _Item(GivenOnly):
    """An item; as it comes back from an answer it has an id and a status, by which nothing is told apart here."""

    id: Text | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    """A message of the conversation."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class CallItem(_Item, FunctionCall):
    """A call that an earlier reply made."""

    type: Literal["function_call"]
    call_id: Text


class ResultItem(_Item):
    """What a function gave back."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Parts


class ReasoningItem(_Item):
    """What the model thought in an earlier reply."""

    type: Literal["reasoning"]
    summary: Annotated[tuple[JsonObject, ...], Field(max_length=0)] = ()
    content: tuple[ReasoningText, ...] = ()


Item = Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")]
Items = Annotated[list[Item], Field(min_length=1), BeforeValidator(_as_items)]


def conversation(instructions: str | None, items: Sequence[Item]) -> tuple[Message, ...]:
    """The conversation as the chat template reads it."""
    first = (Message(role="system", content=instructions),) if instructions else ()
    runs: list[list[Item]] = []
    for item in items:
        if runs and _goes_on(runs[-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return (*first, *(_message(run) for run in runs))


def _goes_on(run: Sequence[Item], item: Item) -> bool:
    """Is the item part of the reply that the run began? A reply thinks, then speaks, then calls."""
    if not (_is_replys(run[-1]) and _is_replys(item)):
        return False
    return isinstance(item, CallItem) or all(isinstance(before, ReasoningItem) for before in run)


def _is_replys(item: Item) -> bool:
    match item:
        case MessageItem(role=role):
            return role == "assistant"
        case _:
            return not isinstance(item, ResultItem)


def _message(run: Sequence[Item]) -> Message:
    match run[0]:
        case ResultItem(call_id=call, output=output):
            return Message(role="tool", content=_text(output), tool_call_id=call)
        case MessageItem(role=role, content=content) if role != "assistant":
            return Message(role="system" if role == "developer" else role, content=_text(content))
        case _:
            return _reply(run)


def _reply(run: Sequence[Item]) -> Message:
    calls = [
        {"id": item.call_id, "type": "function", "function": item.for_template()}
        for item in run
        if isinstance(item, CallItem)
    ]
    thoughts = [_text(item.content) for item in run if isinstance(item, ReasoningItem)]
    return Message(
        role="assistant",
        content="".join(_text(item.content) for item in run if isinstance(item, MessageItem)),
        tool_calls=tuple(calls) or None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
    )


def _text(parts: Sequence[Part | ReasoningText]) -> str:
    return "".join(part.text for part in parts)
