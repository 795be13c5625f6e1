"""What a dialect writes its answers from, and what it writes: values, without HTTP.

- `Opening` is known before the first token, `Delta` is what came since the last one, `Answer` is the end.
- The deltas of a choice, put together, are the parts of that choice in the answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from daemon.text.reply_format import Content, Part, Reasoning, ToolCall
from daemon.text.token_text import Logprob
from engine.orders import TurnEnded

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of an answer before its first token. `turns` has a turn's id for every choice."""

    turns: tuple[str, ...]
    created_at_us: int
    model: str
    adapter: str
    prompt_tokens: int

    @property
    def id(self) -> str:
        """The answer's id: that of its first turn."""
        return self.turns[0]

    @property
    def created_at_seconds(self) -> int:
        """When it was asked, in seconds of the Unix clock."""
        return self.created_at_us // 1_000_000


@dataclass(frozen=True, slots=True)
class Delta:
    """What became certain of a choice: parts of the reply, its tokens, and their log probabilities if asked."""

    choice: int
    parts: tuple[Part, ...]
    logprobs: tuple[Logprob, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply, whole. `ended` has its tokens, times and raw text.

    `deltas` are what it came in, for a dialect that writes its body as it writes its stream.
    """

    index: int
    parts: tuple[Part, ...]
    finish: Finish
    ended: TurnEnded
    logprobs: tuple[Logprob, ...] | None = None
    deltas: tuple[Delta, ...] = ()

    @property
    def text(self) -> str:
        """What the reply says."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))

    @property
    def reasoning(self) -> str | None:
        """What was thought before it, where anything was."""
        thoughts = [part.text for part in self.parts if isinstance(part, Reasoning)]
        return "".join(thoughts) if thoughts else None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools it calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self.ended.stop

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reply that its reasoning came in."""
        thought = (delta for delta in self.deltas if any(isinstance(part, Reasoning) for part in delta.parts))
        return sum(len(delta.tokens) for delta in thought)


@dataclass(frozen=True, slots=True)
class Answer:
    """Every choice of an answer, at its end."""

    opening: Opening
    choices: tuple[Choice, ...]

    @property
    def reply_tokens(self) -> int:
        """Tokens generated, in all choices."""
        return sum(len(choice.ended.reply_tokens) for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the first choice found in its slot."""
        return self.choices[0].ended.cached_tokens


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event: its JSON, and its name where the dialect names events.

    `answer_key` says where in `data` the answer's own object is, if the event wraps it. `tells_learn` marks the
    event of an answer's end that gets the `learn` object; without such a mark the last one does.
    """

    data: Mapping[str, Any]
    name: str | None = None
    answer_key: str | None = None
    tells_learn: bool = False

    def with_learn(self, learn: Mapping[str, Any]) -> "Event":
        """The same event, with the `learn` object in its answer."""
        return replace(self, data=told_of(self.data, learn, key=self.answer_key))


def end_with_learn(events: Iterable[Event], learn: Mapping[str, Any]) -> list[Event]:
    """The last events of an answer, with the `learn` object in the one that tells it."""
    ended = list(events)
    at = next((index for index, event in enumerate(ended) if event.tells_learn), len(ended) - 1)
    ended[at] = ended[at].with_learn(learn)
    return ended


def told_of(data: Mapping[str, Any], learn: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
    """An answer's JSON with the `learn` object in it."""
    holder = data if key is None else data[key]
    assert "learn" not in holder, "the handler adds learn, for every dialect alike"
    told = {**holder, "learn": learn}
    return told if key is None else {**data, key: told}


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts with neighbouring pieces of the same text put together."""
    whole: list[Part] = []
    for part in parts:
        match whole[-1:], part:
            case [Content(text)], Content(more):
                whole[-1] = Content(text + more)
            case [Reasoning(text)], Reasoning(more):
                whole[-1] = Reasoning(text + more)
            case _:
                whole.append(part)
    return tuple(whole)
