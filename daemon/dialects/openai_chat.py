"""OpenAI chat completions: `POST /v1/chat/completions`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from daemon.dialects.answer import Answer, Choice, Delta, Event, Opening
from daemon.dialects.asked import Asked, Conversation, JsonReply, MustBe, Tool, ToolReply
from daemon.dialects.dialect import EventWriter
from daemon.dialects.openai_fields import DONE, Drawing, failed, frame, usage
from daemon.dialects.openai_messages import ChatMessage
from daemon.dialects.openai_tools import ChatTool, NamedChoice, ToolChoice
from daemon.dialects.strict import Body
from daemon.http.errors import BadRequest, ServiceError
from daemon.serving.turns import Limits
from daemon.text.reply_format import Content, Part, Reasoning, ToolCall
from daemon.text.token_text import Logprob
from signals.records import JsonObject, Text

PATH = "/v1/chat/completions"

MAX_TOOLS = 128
"""As many as OpenAI takes; more would fill the prompt of any lane."""


class SchemaFormat(Body):
    """A JSON schema under a name."""

    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[JsonObject, Field(alias="schema", default_factory=dict)]
    strict: bool | None = None
    """Unless it is false, a schema with a keyword that cannot be enforced is refused."""


class TextFormat(Body):
    """Any reply."""

    type: Literal["text"]


class JsonFormat(Body):
    """A reply that is a JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """A reply that is JSON as a schema says."""

    type: Literal["json_schema"]
    json_schema: SchemaFormat


ResponseFormat = Annotated[TextFormat | JsonFormat | JsonSchemaFormat, Field(discriminator="type")]


class ChatRequest(Drawing):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[tuple[ChatTool, ...], Field(max_length=MAX_TOOLS)] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Literal[True] = True
    chat_template_kwargs: JsonObject = Field(default_factory=dict)
    store: Literal[False] = False
    service_tier: Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    def top(self) -> int | None:
        """How many likely tokens are told for each; None where no log probability is asked for."""
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("top_logprobs goes with logprobs: true; give both", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of: with tool_choice none, none."""
        return () if self.tool_choice == "none" else tuple(tool.for_template() for tool in self.tools)

    def must_be(self) -> MustBe | None:
        """What the reply has to be, if anything."""
        called = _must_call(self.tool_choice, self.offered())
        wanted = _must_be(self.response_format)
        if called and wanted:
            raise BadRequest(
                "response_format: a reply that must call a tool cannot also be this; give one of them",
                param="response_format",
            )
        return called or wanted


def _must_call(choice: ToolChoice | None, tools: tuple[Tool, ...]) -> ToolReply | None:
    if choice in {None, "auto", "none"}:
        return None
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    if not tools or (name is not None and name not in {tool.name for tool in tools}):
        wanted = "a tool" if name is None else repr(name)
        raise BadRequest(f"tool_choice: {wanted} is to be called, and tools has none such", param="tool_choice")
    return ToolReply(name)


def _must_be(wanted: ResponseFormat | None) -> JsonReply | None:
    match wanted:
        case JsonSchemaFormat():
            return JsonReply(wanted.json_schema.schema_, strict=wanted.json_schema.strict is not False)
        case JsonFormat():
            return JsonReply()
        case _:
            return None


class OpenAIChat:
    """The dialect."""

    path = PATH
    request = ChatRequest
    closing = DONE

    def asked(self, request: ChatRequest) -> Asked:
        """What the request asks for."""
        messages = tuple(message.for_template() for message in request.messages)
        limits = Limits(
            max_tokens=request.max_completion_tokens or request.max_tokens,
            stop=request.stop,
            sampling=request.sampling(logprobs=request.top()),
        )
        return Asked(
            model=request.model,
            prompt=Conversation(messages, request.offered(), request.chat_template_kwargs),
            limits=limits,
            metadata=request.metadata,
            choices=request.n,
            must_be=request.must_be(),
            learn=request.learn,
            stream=request.stream,
        )

    def body(self, _request: ChatRequest, answer: Answer) -> Mapping[str, Any]:
        """The answer that isn't streamed."""
        choices = [_choice(choice) for choice in answer.choices]
        return frame(answer.opening, "chat.completion") | {"choices": choices, "usage": usage(answer)}

    def writer(self, request: ChatRequest, opening: Opening) -> EventWriter:
        """Writes the chunks of a stream."""
        return _Chunks(request, opening)


class _Chunks:
    """One stream's chunks."""

    def __init__(self, request: ChatRequest, opening: Opening) -> None:
        self._request = request
        self._frame = frame(opening, "chat.completion.chunk")
        self._calls = [0] * len(opening.turns)

    def begin(self) -> Iterator[Event]:
        for choice in range(len(self._calls)):
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> Iterator[Event]:
        logprobs = delta.logprobs
        for part in delta.parts:
            yield self._chunk(delta.choice, self._delta(delta.choice, part), logprobs=logprobs)
            logprobs = ()
        if logprobs:
            yield self._chunk(delta.choice, {}, logprobs=logprobs)

    def end(self, answer: Answer) -> Iterator[Event]:
        for choice in answer.choices:
            yield self._chunk(choice.index, {}, finish=choice.finish)
        if self._request.with_usage:
            yield Event(self._frame | {"choices": [], "usage": usage(answer)})

    def error(self, error: ServiceError) -> Event:
        return failed(error, PATH, self._frame)

    def _delta(self, choice: int, part: Part) -> dict[str, Any]:
        match part:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolCall():
                index = self._calls[choice]
                self._calls[choice] += 1
                return {"tool_calls": [{"index": index} | _call(part)]}

    def _chunk(
        self,
        choice: int,
        delta: Mapping[str, Any],
        *,
        finish: str | None = None,
        logprobs: tuple[Logprob, ...] = (),
    ) -> Event:
        told = _logprobs(logprobs) if logprobs else None
        entry = {"index": choice, "delta": delta, "logprobs": told, "finish_reason": finish}
        return Event(self._frame | {"choices": [entry]})


def _choice(choice: Choice) -> dict[str, Any]:
    calls = [_call(call) for call in choice.calls]
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if calls:
        message["tool_calls"] = calls
    told = None if choice.logprobs is None else _logprobs(choice.logprobs)
    return {"index": choice.index, "message": message, "logprobs": told, "finish_reason": choice.finish}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(logprobs: tuple[Logprob, ...]) -> dict[str, Any]:
    content = [_logprob(token) | {"top_logprobs": [_logprob(other) for other in token.top]} for token in logprobs]
    return {"content": content, "refusal": None}


def _logprob(token: Logprob) -> dict[str, Any]:
    return {"token": token.text, "bytes": list(token.bytes), "logprob": token.logprob}
