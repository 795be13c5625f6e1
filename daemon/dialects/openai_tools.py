"""Tools as OpenAI's chat completions write them, and as the chat template reads them."""

from typing import Annotated, Literal

from pydantic import Field

from daemon.dialects.asked import Tool
from daemon.dialects.strict import Body, GivenOnly
from signals.records import JsonObject, Text

ToolName = Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionTool(GivenOnly):
    """A tool's function."""

    name: ToolName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: Literal[False] = False


class ChatTool(Body):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionTool

    def for_template(self) -> Tool:
        """The tool as every dialect hands it on."""
        return Tool(self.function.name, self.function.description, self.function.parameters)


class NamedFunction(Body):
    """A function by its name."""

    name: Text


class NamedChoice(Body):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice
