"""Messages as OpenAI's chat completions write them, and as the chat template reads them."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from daemon.dialects.strict import Body, GivenOnly
from signals.records import JsonObject, Message, Text


class TextPart(Body):
    """A piece of a message's text."""

    type: Literal["text"]
    text: Text


def _text_only(content: object) -> object:
    """Refuse by its name what isn't text."""
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"{kind} is not supported: this lane reads text only; send parts of type text")
    return content


def _kind(content: object) -> str:
    return "parts" if isinstance(content, list) else "text"


ContentText = Annotated[Text, Tag("text")]
ContentParts = Annotated[list[TextPart], Tag("parts")]
Content = Annotated[ContentText | ContentParts, Discriminator(_kind), BeforeValidator(_text_only)]


class FunctionCall(Body):
    """A call's function: its name, and its arguments as JSON text."""

    name: Text
    arguments: Text

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, arguments: str) -> str:
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("is not a JSON object")
        return arguments

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates read it: arguments as an object."""
        return {"name": self.name, "arguments": json.loads(self.arguments or "{}")}


class MessageCall(GivenOnly):
    """A call that an earlier reply made."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Clients that put streams together send it back."""

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates read it."""
        return {"id": self.id, "type": self.type, "function": self.function.for_template()}


class ChatMessage(GivenOnly):
    """A message of the conversation. Text only: this lane sees no images and hears no sound."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = ""
    name: Text | None = None
    tool_calls: tuple[MessageCall, ...] = ()
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    annotations: Annotated[tuple[JsonObject, ...], Field(max_length=0)] = ()
    """Clients send a reply's message back as they got it, its empty list included."""

    @model_validator(mode="before")
    @classmethod
    def _has_content(cls, message: object) -> object:
        if isinstance(message, dict) and message.get("content") is None and not message.get("tool_calls"):
            raise ValueError("content is missing; only an assistant's message with tool_calls can be without it")
        return message

    @model_validator(mode="after")
    def _belongs_to_its_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError(f"tool_calls and reasoning_content are an assistant's; this message is {self.role}'s")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id is missing: say which call this message answers")
        return self

    def for_template(self) -> Message:
        """The message as the chat template reads it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        calls = tuple(call.for_template() for call in self.tool_calls)
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=text,
            name=self.name,
            tool_calls=calls or None,
            tool_call_id=self.tool_call_id,
            reasoning_content=self.reasoning_content,
        )
