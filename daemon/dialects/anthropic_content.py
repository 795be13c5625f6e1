"""Messages as Anthropic writes them, in content blocks, and as the chat template reads them.

- A content that is a string is one text block. Messages of one role in a row are one turn, as Anthropic has it.
- Texts of a turn are paragraphs: put together with a line break. A tool's result is a message of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from daemon.dialects.strict import Body, GivenOnly
from signals.records import JsonObject, Message, Text

ERROR_MARK = "Error: "
"""What a tool's result that is marked as an error begins with: no chat template has another place for it."""


class CacheControl(Body):
    """Where a prompt's prefix should be cached. A slot holds every prefix it served, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class _Block(GivenOnly):
    cache_control: CacheControl | None = None


class TextBlock(_Block):
    """A piece of text. An answer's blocks come back with its empty list of citations."""

    type: Literal["text"]
    text: Text
    citations: Annotated[tuple[JsonObject, ...], Field(max_length=0)] = ()


class ThinkingBlock(GivenOnly):
    """What the model thought in an earlier turn. Nothing here is signed."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text = ""


class ToolUseBlock(_Block):
    """A call that an earlier reply made."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject

    def for_template(self) -> JsonObject:
        """The call as chat templates read it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.input}}


def _as_blocks(content: object) -> object:
    """A string is one text block; what this lane cannot read is refused by its name."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    for block in content if isinstance(content, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in {"text", "thinking", "tool_use", "tool_result"}:
            raise ValueError(f"{kind} is not supported: this lane reads text only; send blocks of type text")
    return content


Texts = Annotated[tuple[TextBlock, ...], BeforeValidator(_as_blocks)]


class ToolResultBlock(_Block):
    """What a tool gave back."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Texts = ()
    is_error: bool = False

    def for_template(self) -> Message:
        """The result as chat templates read it."""
        told = (ERROR_MARK if self.is_error else "") + together(self.content)
        return Message(role="tool", content=told, tool_call_id=self.tool_use_id)


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
Blocks = Annotated[list[Block], BeforeValidator(_as_blocks)]

_BLOCKS_OF = {
    "user": {"text", "tool_result"},
    "assistant": {"text", "thinking", "tool_use"},
    "system": {"text"},
}


class AnthropicMessage(Body):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _belongs_to_its_role(self) -> Self:
        foreign = next((block.type for block in self.content if block.type not in _BLOCKS_OF[self.role]), None)
        if foreign is not None:
            allowed = ", ".join(sorted(_BLOCKS_OF[self.role]))
            raise ValueError(f"a block of type {foreign} is not for the role {self.role}, which takes {allowed}")
        return self


def conversation(system: Sequence[TextBlock], messages: Sequence[AnthropicMessage]) -> tuple[Message, ...]:
    """The conversation as the chat template reads it."""
    first = (Message(role="system", content=together(system)),) if system else ()
    turns = groupby(messages, key=lambda message: message.role)
    rest = (_turn(role, tuple(chain.from_iterable(one.content for one in own))) for role, own in turns)
    return (*first, *chain.from_iterable(rest))


def _turn(role: str, blocks: Sequence[Block]) -> Iterator[Message]:
    if role == "assistant" or not blocks:
        yield _spoken(role, blocks)
        return
    for are_results, run in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        own = tuple(run)
        if are_results:
            yield from (block.for_template() for block in own if isinstance(block, ToolResultBlock))
        else:
            yield _spoken(role, own)


def _spoken(role: str, blocks: Sequence[Block]) -> Message:
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [block.for_template() for block in blocks if isinstance(block, ToolUseBlock)]
    return Message(
        role=role,
        content=together(block for block in blocks if isinstance(block, TextBlock)),
        tool_calls=tuple(calls) or None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
    )


def together(blocks: Iterable[TextBlock]) -> str:
    """The text of blocks, each a paragraph."""
    return "\n".join(block.text for block in blocks)
