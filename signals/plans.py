"""The lesson that planning makes of a signal: what is learned after what, and how much each of it weighs."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from signals.records import AgentName, ContextName, Index, LearningRate, Name, Record, TokenIds

LessonKind = Literal["engram", "correction", "labels", "action"]
"""The kind of signal that makes a lesson."""


class LessonPlan(Record):
    """One run of rows after a served prefix: row i feeds ``tokens[i]`` and learns ``targets[i]``, if any."""

    agent: AgentName
    context: ContextName
    turn: Name
    kind: LessonKind
    signals: Annotated[tuple[Name, ...], Field(min_length=1)]
    """The ids of the signals it is made of; the one that makes it comes first."""
    prefix_tokens: Index
    """How many served tokens the run reads before its first row."""
    prefix: TokenIds
    tokens: TokenIds
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    lr: LearningRate | None = None
    """The learning rate of its step, where that is not the shadow's own."""

    @model_validator(mode="after")
    def _is_one_weighted_run(self) -> Self:
        if self.prefix_tokens != len(self.prefix):
            raise ValueError(f"prefix_tokens is {self.prefix_tokens}, the prefix has {len(self.prefix)} tokens")
        rows = {len(self.tokens), len(self.targets), len(self.weights)}
        if len(rows) != 1 or 0 in rows:
            raise ValueError(
                f"{len(self.tokens)} tokens, {len(self.targets)} targets and {len(self.weights)} weights "
                "are not one or more whole rows"
            )
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights):
            raise ValueError("weights must be finite and not negative")
        return self

    @property
    def last_position(self) -> int:
        """The position of the run's last row."""
        return self.prefix_tokens + len(self.tokens) - 1
