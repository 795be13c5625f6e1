"""What the engine says no to.

EngineError
├── ModelNotUsable     the weights or the architecture cannot be served as asked
├── TurnRejected       a turn cannot be served as asked; nothing was changed
└── LessonRefused      a lesson cannot be learned; nothing was changed

- Every message says what was given, what is allowed and what to do.
- `LessonRefused.code` is one of the house's refusal codes; `position` is the token position it speaks of.
"""

from typing import Literal

EngineRefusal = Literal[
    "unserved_prefix",
    "repacked_weights",
    "no_backward",
    "recurrent_state_missing",
    "past_context",
    "labels_not_one_run",
    "label_not_output",
    "bad_weight",
    "nonfinite_loss",
    "nonfinite_gradient",
    "adapter_unknown",
    "host_memory",
    "device_memory",
    "lane_cannot_learn",
    "cancelled",
]


class EngineError(Exception):
    """The root of the engine's own errors."""


class ModelNotUsable(EngineError):
    """The model cannot be loaded or run by this engine."""


class TurnRejected(EngineError):
    """The turn cannot be served as asked."""


class LessonRefused(EngineError):
    """The lesson was not learned: a code, a sentence and, where it applies, a token position."""

    def __init__(self, code: EngineRefusal, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.code: EngineRefusal = code
        self.message = message
        self.position = position
