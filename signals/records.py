"""What crosses the boundary: the signals an agent emits, and the turns a lane served.

* Every record is frozen, refuses unknown fields, and fits in UTF-8 JSON (no lone surrogate, no NaN).
* A signal's ``id`` is its client's idempotency key: the same id with the same fingerprint is the same signal.
* An engram points in exactly one way: at a message, at a character range of a message, or by an exact quote.
* A correction comes after what its turn was served: the prompt, so many tokens, or a conversation.
* Message index ``len(messages)`` of a turn is the turn's own reply.
"""

import hashlib
import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    model_validator,
)

MAX_SIGNALS = 1_000
"""Signals in one request: enough for a day's backlog, few enough to be stored in one short transaction."""

MAX_TEXT_CHARS = 1_000_000
"""Characters of a quote or a corrected reply: past any context a lane serves, short of hurting it."""

MAX_LABELS = 200
"""Labels of one signal: more than a conversation has passages worth pointing at, few enough to place at once."""

_T = TypeVar("_T")


def _encodable(value: _T) -> _T:
    try:
        (value if isinstance(value, str) else _dump(value)).encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which UTF-8 cannot carry; send valid Unicode") from error
    return value


_dump = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{at.isoformat()} is outside the years 1 to 9999 in UTC") from error


Text = Annotated[str, AfterValidator(_encodable)]
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_encodable)]
Name = Annotated[Text, Field(min_length=1, max_length=200, pattern=r"^\P{Cc}+$")]
ContextName = Annotated[Text, Field(max_length=200, pattern=r"^\P{Cc}*$")]
AgentName = Annotated[Text, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
Index = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
LabelWeight = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
TokenIds = tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]


class Origin(StrEnum):
    """Who a piece of the traffic comes from."""

    HUMAN = "human"
    TOOL = "tool"
    PEER = "peer"
    SELF = "self"


class EngramKind(StrEnum):
    """What sort of memory an engram is."""

    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    SELF_REFLECTION = "self-reflection"


class Outcome(StrEnum):
    """How a turn ended, by its latest verdict."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Record(BaseModel):
    """What all records are: frozen, and without a field that is not theirs."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(Record):
    """One message of a conversation, as the chat template gets it."""

    role: Annotated[Text, Field(min_length=1)]
    content: Text
    name: Text | None = None
    tool_calls: tuple[JsonObject, ...] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None

    def for_template(self) -> dict[str, object]:
        """Return the message as chat templates read it: plain values, no key for what it lacks."""
        return self.model_dump(mode="json", exclude_none=True)


class _SignalBase(Record):
    id: Name
    agent: AgentName
    context: ContextName = ""
    at: Moment | None = None
    """When the agent noticed it, kept in UTC so that one instant has one spelling."""


def _check_range(start: int | None, end: int | None) -> None:
    """Both ends or none, in order."""
    if (start is None) != (end is None):
        raise ValueError("start and end go together; give both, or neither for the whole message")
    if start is not None and end is not None and start >= end:
        raise ValueError(f"start {start} is not before end {end}")


class _Awaiting(_SignalBase):
    await_verdict: Annotated[bool, Field(strict=True)] = False
    """Its lesson waits until a verdict says that the turn passed; one that says failed ends it."""


class Engram(_Awaiting):
    """A piece of a turn that matters: a message, a character range of it, or an exact quote."""

    kind: Literal["engram"] = "engram"
    turn: Name
    origin: Origin
    engram_kind: EngramKind = EngramKind.EPISODIC
    relevance: Share = 1.0
    message: Index | None = None
    start: Index | None = None
    end: Index | None = None
    quote: Annotated[Text, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None

    @model_validator(mode="after")
    def _points_in_one_way(self) -> Self:
        if self.message is None and self.quote is None:
            raise ValueError("points nowhere; give message, or message with start and end, or quote")
        if self.start is None and self.end is None:
            return self
        if self.quote is not None:
            raise ValueError("points twice; give either quote, or message with start and end")
        _check_range(self.start, self.end)
        return self

    @property
    def whole_message(self) -> bool:
        """True where the engram points at all of a message rather than at a piece of it."""
        return self.quote is None and self.start is None


class Relevance(_SignalBase):
    """That engram matters this much; the latest wins until its lesson rides."""

    kind: Literal["relevance"] = "relevance"
    engram: Name
    """The id of the engram's signal."""
    relevance: Share


class ReplyMessage(Record):
    """A corrected reply in the form of a chat message."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[Text, Field(max_length=MAX_TEXT_CHARS)] | None = None
    tool_calls: tuple[JsonObject, ...] | None = None
    reasoning_content: Annotated[Text, Field(max_length=MAX_TEXT_CHARS)] | None = None


class Correction(_SignalBase):
    """The reply of that turn should have been this: a text, a message, or token ids, learned as they are.

    It comes after the turn's prompt, or after the first ``prefix_tokens`` of its prompt and reply, or it ends the
    conversation ``messages``, which must render to what the turn was served. A conversation that belongs to no
    turn has none.
    """

    kind: Literal["correction"] = "correction"
    turn: Name | None = None
    reply: Annotated[Text, Field(max_length=MAX_TEXT_CHARS)] | ReplyMessage | None = None
    reply_tokens: Annotated[TokenIds, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None
    prefix_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    template_args: JsonObject | None = None
    """What the template was given beside ``messages``, where that is not what it was given for the turn."""
    origin: Origin = Origin.HUMAN
    relevance: Share = 1.0
    lr: LearningRate | None = None
    """The learning rate of its step, where that is not the shadow's own."""

    @model_validator(mode="after")
    def _says_one_reply_after_one_thing(self) -> Self:
        if (self.reply is None) == (self.reply_tokens is None):
            raise ValueError("give one of reply and reply_tokens")
        if self.prefix_tokens is not None and self.messages is not None:
            raise ValueError("give either prefix_tokens or messages: the reply comes after one of them")
        if self.messages is None and self.template_args is not None:
            raise ValueError("template_args belong to messages; give both, or neither for the turn's own")
        if self.turn is None and self.messages is None:
            raise ValueError("turn is missing; only a correction with messages can be without one")
        return self


class Label(Record):
    """A message of the prompt, or the characters [start, end) of it, and how much each of its tokens weighs."""

    message: Index
    start: Index | None = None
    end: Index | None = None
    weight: LabelWeight = 1.0

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        _check_range(self.start, self.end)
        return self


class Labels(_SignalBase):
    """These pieces of that turn's prompt are learned, in one lesson. Where two overlap the higher counts."""

    kind: Literal["labels"] = "labels"
    turn: Name
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_LABELS)]
    origin: Origin = Origin.HUMAN
    lr: LearningRate | None = None


class Action(_Awaiting):
    """The agent's own reply of that turn was worth keeping."""

    kind: Literal["action"] = "action"
    turn: Name
    relevance: Share = 1.0


class Verdict(_SignalBase):
    """How that turn ended."""

    kind: Literal["verdict"] = "verdict"
    turn: Name
    outcome: Outcome


Signal = Annotated[Engram | Relevance | Correction | Labels | Action | Verdict, Field(discriminator="kind")]

_SIGNAL: TypeAdapter[Signal] = TypeAdapter(Signal)
_SIGNALS: TypeAdapter[list[Signal]] = TypeAdapter(
    Annotated[list[Signal], Field(min_length=1, max_length=MAX_SIGNALS)]
)


def parse_signal(body: object) -> Signal:
    """Read one signal from decoded JSON. Raises `pydantic.ValidationError`, naming each bad field."""
    return _SIGNAL.validate_python(body)


def parse_signals(body: object) -> list[Signal]:
    """Read a list of 1 to ``MAX_SIGNALS`` signals, or a single one, from decoded JSON.

    Raises `pydantic.ValidationError` where a signal is ill-formed, or there are none or too many.
    """
    return _SIGNALS.validate_python(body) if isinstance(body, list) else [parse_signal(body)]


def canonical_json(signal: Signal) -> str:
    """Write ``signal`` in the spelling that equal signals share: defaults filled in, keys sorted."""
    return _dump(signal.model_dump(mode="json"))


def fingerprint_of(body: JsonValue) -> str:
    """Return the SHA-256, in hexadecimal, of a body of JSON: equal only where bodies are, in any order of keys."""
    return hashlib.sha256(_dump(body).encode()).hexdigest()


class Turn(Record):
    """One completion request, served."""

    id: Name
    agent: AgentName
    context: ContextName = ""
    private: bool = False
    messages: tuple[Message, ...]
    template_args: JsonObject = {}
    prompt_tokens: TokenIds
    reply_tokens: TokenIds
    """As generated, with the end-of-turn token where one was generated."""
    reply_text: Text
    adapter: Text
    context_tokens: Annotated[int, Field(gt=0)]
    """The size of the slot's context."""

    @property
    def texts(self) -> tuple[str, ...]:
        """What engrams point into, by message index: each message's content, then the turn's own reply."""
        return (*(message.content for message in self.messages), self.reply_text)

    @property
    def reply_index(self) -> int:
        """The message index of the turn's own reply."""
        return len(self.messages)
