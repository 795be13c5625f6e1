"""The body of OpenAI's `POST /v1/responses`, and what it asks of the reply."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from daemon.dialects.asked import Conversation, JsonReply, MustBe, Tool, ToolReply
from daemon.dialects.learn import LearnOptions
from daemon.dialects.openai_chat import MAX_TOOLS, JsonFormat, SchemaFormat, TextFormat
from daemon.dialects.openai_responses_items import Items, conversation
from daemon.dialects.openai_tools import FunctionTool
from daemon.dialects.strict import Body, GivenOnly
from daemon.dialects.thinking import thinking_args
from daemon.dialects.tool_choice import either, must_call
from daemon.http.errors import BadRequest
from daemon.http.speaker import Metadata
from engine.sampling import Sampling
from signals.records import Text
from store.columns import JsonValue

LOGPROBS = "message.output_text.logprobs"
"""What `include` names to have log probabilities."""

EFFORT = "reasoning_effort"
"""The argument by which a chat template has the model think more or less."""


class ResponsesTool(FunctionTool):
    """A function that the model may call and the client runs."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_the_clients(cls, tool: object) -> object:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ValueError(f"{kind} is not supported: this lane runs no tools; give tools of type function")
        return tool

    def for_template(self) -> Tool:
        """The tool as every dialect hands it on."""
        return Tool(self.name, self.description, self.parameters)


class NamedFunction(Body):
    """The one function that must be called."""

    type: Literal["function"]
    name: Text


class SchemaText(SchemaFormat):
    """A reply that is JSON as a schema says."""

    type: Literal["json_schema"]


class TextConfig(GivenOnly):
    """What the reply's text is to be."""

    format: Annotated[TextFormat | JsonFormat | SchemaText, Field(discriminator="type")] = TextFormat(type="text")


class ReasoningConfig(GivenOnly):
    """How much the model is to think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    def template_args(self, template: str) -> dict[str, JsonValue]:
        """The template's arguments for it. One that only switches thinking knows `none`, and no degrees.

        Raises:
            BadRequest: the model's template has no argument for it.
        """
        if self.effort is None:
            return {}
        if EFFORT in template:
            return {EFFORT: self.effort}
        if self.effort == "none":
            return thinking_args(template, on=False, param="reasoning.effort")
        raise BadRequest(
            f"reasoning.effort: this model's chat template has no {EFFORT}, so it cannot be told how much to "
            "think; leave it out",
            param="reasoning.effort",
        )


class ResponsesStream(Body):
    """How a stream is sent."""

    include_obfuscation: Literal[False] = False


def _nothing_is_kept(given: object) -> object:
    if given is not False:
        raise ValueError(
            "no response is kept to be fetched or gone on from later; leave it out, and send the whole "
            "conversation as input"
        )
    return given


NotKept = BeforeValidator(_nothing_is_kept)

_REPEATED = {
    "background",
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "store",
    "temperature",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
}
"""What an answer repeats of its request as it stands."""


class ResponsesRequest(GivenOnly):
    """The body of `POST /v1/responses`."""

    model: str
    input: Items
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    tools: Annotated[tuple[ResponsesTool, ...], Field(max_length=MAX_TOOLS)] = ()
    tool_choice: Literal["none", "auto", "required"] | NamedFunction = "auto"
    parallel_tool_calls: Literal[True] = True
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    include: Annotated[tuple[Literal["message.output_text.logprobs"], ...], Field(max_length=1)] = ()
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    stream: bool = False
    stream_options: ResponsesStream | None = None
    metadata: Metadata = Metadata()
    learn: LearnOptions = LearnOptions()
    store: Annotated[Literal[False], NotKept] = False
    """OpenAI keeps responses unless told not to; a lane never does, and its answers say so."""
    previous_response_id: Annotated[None, NotKept] = None
    conversation: Annotated[None, NotKept] = None
    background: Annotated[Literal[False], NotKept] = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["auto"] = "auto"
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    """As `user`: who speaks is said by header or metadata, and slots hold every prefix, so they change nothing."""

    def prompt(self, template: str) -> Conversation:
        """What the chat template is given; `template` is its text."""
        messages = conversation(self.instructions, self.input)
        return Conversation(messages, self.offered(), self.reasoning.template_args(template), param="input")

    def sampling(self) -> Sampling:
        """How tokens are drawn, and how many likely ones are told for each."""
        if self.top_logprobs and not self.include:
            raise BadRequest(f"top_logprobs goes with include: [{LOGPROBS!r}]; give both", param="top_logprobs")
        logprobs = self.top_logprobs if self.include else None
        return Sampling(temperature=self.temperature, top_p=self.top_p, logprobs=logprobs)

    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of: with tool_choice none, none."""
        return () if self.tool_choice == "none" else tuple(tool.for_template() for tool in self.tools)

    def must_be(self) -> MustBe | None:
        """What the reply has to be, if anything."""
        return either(self._must_call(), _must_be(self.text))

    def _must_call(self) -> ToolReply | None:
        match self.tool_choice:
            case NamedFunction(name=name):
                return must_call(self.offered(), name)
            case "required":
                return must_call(self.offered())
            case _:
                return None

    def as_told(self) -> dict[str, Any]:
        """What an answer repeats of its request."""
        return self.model_dump(mode="json", include=_REPEATED) | {
            "tools": [tool.model_dump(mode="json") for tool in self.tools],
            "text": self.text.model_dump(mode="json", by_alias=True, exclude_none=True),
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "metadata": self.metadata.model_dump(mode="json", exclude_none=True),
        }


def _must_be(wanted: TextConfig) -> JsonReply | None:
    match wanted.format:
        case SchemaText() as asked:
            return JsonReply(asked.schema_, strict=asked.strict is not False, param="text.format")
        case JsonFormat():
            return JsonReply(param="text.format")
        case _:
            return None
