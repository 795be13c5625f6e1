"""What a request says of learning, the same in every dialect: its `learn` object."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from signals.records import MAX_TEXT_CHARS, Index, Message, Text

MAX_LEARN_WAIT_SECONDS = 600.0
"""Longer than any lesson takes; a client that waits longer has been forgotten."""

MAX_LABELS = 1_000
"""Labels of one request: more than a conversation has passages worth pointing at."""


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Label(_Options):
    """A message of the prompt, or the characters [start, end) of it, and how much each of its tokens weighs."""

    message: Index
    start: Index | None = None
    end: Index | None = None
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end go together; give both, or neither for the whole message")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start {self.start} is not before end {self.end}")
        return self


class LearnOptions(_Options):
    """What the client wants of learning in this request."""

    wait: Annotated[float, Field(ge=0, le=MAX_LEARN_WAIT_SECONDS)] = 0.0
    """Seconds that the end of the answer may wait for lessons that rode it and still walk."""
    reply: Annotated[Text, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None
    """What the reply should be: learned after this request's prompt."""
    messages: tuple[Message, ...] | None = None
    """The conversation to learn `reply` after, where it isn't the request's own."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The learning rate of this request's lesson."""
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_LABELS)] | None = None
    """Which of the prompt's own words are learned."""

    def asks_for_a_lesson(self) -> str | None:
        """The first field by which the request itself asks for a lesson, if any does."""
        fields = ("reply", "messages", "lr", "labels")
        return next((name for name in fields if getattr(self, name) is not None), None)
