"""What a request asks for, whatever dialect it came in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from daemon.dialects.learn import LearnOptions
from daemon.http.speaker import Metadata
from daemon.serving.turns import Limits
from engine.constraint import Constraint
from signals.records import Message
from store.columns import JsonValue


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Mapping[str, JsonValue] | None = None

    def for_template(self) -> dict[str, JsonValue]:
        """The tool as chat templates read it."""
        function: dict[str, JsonValue] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = dict(self.parameters or {"type": "object", "properties": {}})
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that the chat template renders. Errors about them name the request's field `param`."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_args: Mapping[str, JsonValue] = field(default_factory=dict)
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt without a chat template: a text, or token ids and texts one after the other."""

    content: str | tuple[int | str, ...]
    param: str = "prompt"


@dataclass(frozen=True, slots=True)
class JsonReply:
    """The reply must be JSON: one that the schema allows, or any object where there is none.

    A keyword of the schema that cannot be enforced is refused if `strict`, else without effect.
    """

    schema: Mapping[str, JsonValue] | None = None
    strict: bool = True
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class GrammarReply:
    """The reply must be a sentence of the grammar: GBNF, or llguidance's Lark."""

    grammar: str
    param: str = "grammar"


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The reply must call tools: the named one once, or any where there is no name."""

    name: str | None = None
    param: str = "tools"


MustBe = JsonReply | GrammarReply | ToolReply
"""What a reply is held to. Errors about it name the request's field `param`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. `limits` are those of its first choice."""

    model: str | None
    prompt: Conversation | RawPrompt
    limits: Limits
    metadata: Metadata | None = None
    choices: int = 1
    must_be: MustBe | None = None
    learn: LearnOptions = field(default_factory=LearnOptions)
    stream: bool = False

    def limits_of_choices(self, constraint: Callable[[], Constraint] | None) -> Iterator[Limits]:
        """The limits of each choice. The seed counts up: choices of one seed differ, and are the same again."""
        for choice in range(self.choices):
            sampling = self.limits.sampling
            seed = None if sampling.seed is None else sampling.seed + choice
            yield replace(self.limits, sampling=replace(sampling, seed=seed), constraint=constraint)
