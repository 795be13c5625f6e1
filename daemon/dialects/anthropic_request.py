"""What Anthropic's two requests say: a prompt, alone to be counted, or with the limits of its reply."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from daemon.dialects.anthropic_content import AnthropicMessage, CacheControl, Texts, conversation
from daemon.dialects.asked import Conversation, JsonReply, MustBe, Tool, ToolReply
from daemon.dialects.learn import LearnOptions
from daemon.dialects.openai_fields import StopText
from daemon.dialects.strict import Body, GivenOnly
from daemon.dialects.thinking import can_switch, thinking_args
from daemon.dialects.tool_choice import either, must_call
from daemon.http.speaker import Metadata
from engine.sampling import Sampling
from signals.records import JsonObject, Text
from store.columns import JsonValue

MAX_TOOLS = 128
"""More would fill the prompt of any lane."""

MAX_STOPS = 16
"""Each is looked for in every piece of the reply."""


class AnthropicTool(GivenOnly):
    """A tool that the model may call and the client runs."""

    type: Literal["custom"] = "custom"
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: Text | None = None
    input_schema: JsonObject
    strict: Literal[False] = False
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_the_clients(cls, tool: object) -> object:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not (kind is None or kind == "custom"):
            raise ValueError(f"{kind} is not supported: this lane runs no tools itself; give tools of type custom")
        return tool

    def for_template(self) -> Tool:
        """The tool as every dialect hands it on."""
        return Tool(self.name, self.description, self.input_schema)


class AutoChoice(Body):
    """The model decides whether it calls."""

    type: Literal["auto"]
    disable_parallel_tool_use: Literal[False] = False


class AnyChoice(Body):
    """Some tool must be called."""

    type: Literal["any"]
    disable_parallel_tool_use: Literal[False] = False


class OneChoice(Body):
    """The named tool must be called, which is done once in any case."""

    type: Literal["tool"]
    name: Text
    disable_parallel_tool_use: bool = False


class NoChoice(Body):
    """No tool is to be called: the model hears of none."""

    type: Literal["none"]


class ThinkingEnabled(Body):
    """The model is to think. The budget is a target, as Anthropic has it, and nothing holds the model to it."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1)]


class ThinkingDisabled(Body):
    """The model is not to think, if its template has a switch for that."""

    type: Literal["disabled"]


class ThinkingAdaptive(Body):
    """The model thinks as its template has it without being told."""

    type: Literal["adaptive"]


class JsonOutput(Body):
    """A reply that is JSON as a schema says."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(GivenOnly):
    """What the reply is to be like."""

    format: JsonOutput | None = None


class AnthropicMetadata(Metadata):
    """The lane's own keys, and Anthropic's for a user of the client, by which nothing is told apart here."""

    user_id: Text | None = None

    def of_speaker(self) -> Metadata:
        """The lane's own keys."""
        return Metadata(agent=self.agent, context=self.context, private=self.private)


ToolChoice = Annotated[AutoChoice | AnyChoice | OneChoice | NoChoice, Field(discriminator="type")]
Thinking = Annotated[ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive, Field(discriminator="type")]


class CountRequest(GivenOnly):
    """The body of `POST /v1/messages/count_tokens`: all of a request that its prompt is made of."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: Texts = ()
    tools: Annotated[tuple[AnthropicTool, ...], Field(max_length=MAX_TOOLS)] = ()
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    cache_control: CacheControl | None = None

    @field_validator("messages")
    @classmethod
    def _asks_for_a_reply(cls, messages: list[AnthropicMessage]) -> list[AnthropicMessage]:
        if messages[-1].role == "assistant":
            raise ValueError(
                "the last message is the assistant's, and going on with a reply that was begun (prefill) is not "
                "supported; end with a user's message"
            )
        return messages

    def conversation(self, template: str) -> Conversation:
        """What the chat template is given; `template` is its text."""
        messages = conversation(self.system, self.messages)
        return Conversation(messages, self.offered(), self._template_args(template))

    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        unheard = isinstance(self.tool_choice, NoChoice)
        return () if unheard else tuple(tool.for_template() for tool in self.tools)

    def must_be(self) -> MustBe | None:
        """What the reply has to be, if anything."""
        wanted = self.output_config.format
        held = JsonReply(wanted.schema_, param="output_config.format") if wanted else None
        return either(self._must_call(), held)

    def _must_call(self) -> ToolReply | None:
        match self.tool_choice:
            case AnyChoice():
                return must_call(self.offered())
            case OneChoice(name=name):
                return must_call(self.offered(), name)
            case _:
                return None

    def _template_args(self, template: str) -> dict[str, JsonValue]:
        match self.thinking:
            case ThinkingEnabled():
                return thinking_args(template, on=True, param="thinking")
            case ThinkingDisabled() if can_switch(template):
                return thinking_args(template, on=False, param="thinking")
            case _:
                return {}


class MessagesRequest(CountRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[tuple[StopText, ...], Field(max_length=MAX_STOPS)] = ()
    temperature: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stream: bool = False
    metadata: AnthropicMetadata = AnthropicMetadata()
    service_tier: Literal["auto", "standard_only"] = "auto"
    """A lane has no tiers, so both mean the same."""
    learn: LearnOptions = LearnOptions()

    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
