"""The output of OpenAI's responses: its items, and what a stream tells of them as they come.

- One way for both answers: what isn't streamed is put together from the same deltas.
- One item is open at a time. Only the last can be incomplete, where the reply was cut off.
- Log probabilities are told of what is said; those of reasoning, calls and tags are not.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from daemon.dialects.answer import Delta, Finish
from daemon.text.reply_format import Content, Reasoning, ToolCall
from daemon.text.token_text import Logprob

Told = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class _TextItem:
    """An item of text while it comes. Every one has one part."""

    prefix: ClassVar[str]
    events: ClassVar[str]
    head: ClassVar[Told]

    def __init__(self, answer: str, index: int) -> None:
        self._id, self._index = f"{self.prefix}_{answer}_{index}", index
        self._text = ""
        self._logprobs: list[Told] = []

    def begin(self) -> Iterator[Told]:
        item = self.item("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": self._index, "item": item}
        yield self._told("response.content_part.added", part=self.part())

    def go_on(self, text: str, logprobs: Sequence[Logprob]) -> Iterator[Told]:
        told = [_logprob(token) for token in logprobs]
        self._text += text
        self._logprobs += told
        yield self._told(f"{self.events}.delta", delta=text, **self.with_logprobs(told))

    def end(self, status: Status) -> Iterator[Told]:
        yield self._told(f"{self.events}.done", text=self._text, **self.with_logprobs(self._logprobs))
        yield self._told("response.content_part.done", part=self.part())
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}

    def item(self, status: Status) -> Told:
        return {"id": self._id, **self.head, "status": status, "content": [self.part()]}

    def part(self) -> Told:
        return {"type": self.events.removeprefix("response."), "text": self._text}

    def with_logprobs(self, _logprobs: list[Told]) -> Told:
        return {}

    def _told(self, kind: str, **fields: Any) -> Told:
        at = {"item_id": self._id, "output_index": self._index, "content_index": 0}
        return {"type": kind, **at, **fields}


class _Said(_TextItem):
    """What the reply says."""

    prefix = "msg"
    events = "response.output_text"
    head: ClassVar[Told] = {"type": "message", "role": "assistant"}

    def part(self) -> Told:
        return super().part() | {"annotations": [], "logprobs": list(self._logprobs)}

    def with_logprobs(self, logprobs: list[Told]) -> Told:
        return {"logprobs": list(logprobs)}


class _Thought(_TextItem):
    """What was thought before."""

    prefix = "rs"
    events = "response.reasoning_text"
    head: ClassVar[Told] = {"type": "reasoning", "summary": []}


class Output:
    """The output of one answer. What `take` and `end` give are a stream's events, but for their numbers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer.removeprefix("turn-")
        self._open: _TextItem | None = None
        self.items: list[Told] = []

    @classmethod
    def whole(cls, answer: str, deltas: Sequence[Delta], finish: Finish) -> "Output":
        """The output of an answer that has ended."""
        made = cls(answer)
        for delta in deltas:
            list(made.take(delta))
        list(made.end(finish))
        return made

    def take(self, delta: Delta) -> Iterator[Told]:
        """What a delta adds."""
        logprobs = delta.logprobs
        for part in delta.parts:
            match part:
                case ToolCall():
                    yield from self._close("completed")
                    yield from self._call(part)
                case Content() | Reasoning():
                    yield from self._say(part, logprobs)
            logprobs = () if isinstance(part, Content) else logprobs

    def end(self, finish: Finish) -> Iterator[Told]:
        """The end of the last item."""
        yield from self._close("incomplete" if finish == "length" else "completed")

    def _say(self, part: Content | Reasoning, logprobs: Sequence[Logprob]) -> Iterator[Told]:
        kind = _Said if isinstance(part, Content) else _Thought
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            self._open = kind(self._answer, len(self.items))
            yield from self._open.begin()
            logprobs = _tokens_of(part.text, logprobs)
        yield from self._open.go_on(part.text, logprobs)

    def _close(self, status: Status) -> Iterator[Told]:
        if self._open is None:
            return
        yield from self._open.end(status)
        self.items.append(self._open.item(status))
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[Told]:
        index = len(self.items)
        begun = {"id": f"fc_{self._answer}_{index}", "type": "function_call", "status": "in_progress"}
        begun |= {"call_id": call.id, "name": call.name, "arguments": ""}
        done = begun | {"status": "completed", "arguments": call.arguments}
        self.items.append(done)
        at = {"item_id": begun["id"], "output_index": index}
        arguments = "response.function_call_arguments"
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield {"type": f"{arguments}.delta", **at, "delta": call.arguments}
        yield {"type": f"{arguments}.done", **at, "arguments": call.arguments}
        yield {"type": "response.output_item.done", "output_index": index, "item": done}


def _tokens_of(text: str, tokens: Sequence[Logprob]) -> Sequence[Logprob]:
    """The last tokens, as many as have the text: before them may be those of a tag that closed."""
    missing, at = len(text.encode()), len(tokens)
    while missing > 0 and at > 0:
        at -= 1
        missing -= len(tokens[at].bytes)
    return tokens[at:]


def _logprob(token: Logprob) -> Told:
    return _one(token) | {"top_logprobs": [_one(other) for other in token.top]}


def _one(token: Logprob) -> Told:
    return {"token": token.text, "bytes": list(token.bytes), "logprob": token.logprob}
