"""Refusals: what was not learned, and why.

* The set of codes is closed; each carries the one sentence that says what it means in general.
* A refusal precedes any change. Its message says what was given, what is allowed and what to do.
"""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class RefusalCode(StrEnum):
    """Why a lesson was refused, as a stable word for programs; ``sentence`` is the same for people."""

    _value_: str
    sentence: str

    def __new__(cls, code: str, sentence: str = "") -> Self:
        """Make a member whose value is its code alone: ``RefusalCode(code)`` reads a stored one back."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member

    UNSERVED_PREFIX = "unserved_prefix", "What comes before the lesson was never served by this lane."
    PREFIX_EVICTED = "prefix_evicted", "No slot holds what comes before the lesson any more."
    TOOL_CALL_REPLY = (
        "tool_call_reply",
        "The substance of the reply is a tool call in a form that cannot be learned.",
    )
    REASONING_REPLY = "reasoning_reply", "The reply contains reasoning, which cannot be learned yet."
    EMPTY_REPLY = "empty_reply", "The reply has no text to learn."
    MEDIA_IN_PROMPT = (
        "media_in_prompt",
        "The prompt contains media, whose rows cannot be rebuilt from tokens.",
    )
    REPACKED_WEIGHTS = (
        "repacked_weights",
        "The lane keeps its weights in a form that serves but has no backward.",
    )
    NO_BACKWARD = "no_backward", "The format of the weights has no backward pass."
    POLICY_OFF = "policy_off", "The agent has no policy that lets it learn."
    PRIVATE_CONTEXT = "private_context", "The turn belongs to a private context, and those never train."
    UNTRUSTED_SOURCE = "untrusted_source", "The policy does not trust the source of the signal."
    FAILED_OUTCOME = "failed_outcome", "The turn was judged failed, so its own reply is not learned."
    PAST_CONTEXT = "past_context", "The lesson reaches past the end of the slot's context."
    LESSON_TOO_LONG = "lesson_too_long", "The lesson has more tokens than one lesson may have."
    RECURRENT_STATE_MISSING = (
        "recurrent_state_missing",
        "No checkpoint of the recurrent state is held where the lesson begins.",
    )
    PENDING_ROLLBACK = "pending_rollback", "The adapter is about to be rolled back, so nothing trains it now."
    TURN_UNKNOWN = "turn_unknown", "The agent has no such turn."
    SPAN_NOT_FOUND = "span_not_found", "What the signal points to does not occur in the turn."
    QUOTE_AMBIGUOUS = "quote_ambiguous", "The quote occurs more than once in what it was looked for in."
    TEMPLATE_NOT_PREFIX_STABLE = (
        "template_not_prefix_stable",
        "Rendered again, the turn is not, character by character and token by token, what was served.",
    )
    LABELS_NOT_ONE_RUN = "labels_not_one_run", "The labelled rows of a slot are not one run of positions."
    LABEL_NOT_OUTPUT = "label_not_output", "A labelled row is not an output row."
    BAD_WEIGHT = "bad_weight", "A weight is not finite, is negative, or leaves nothing to learn."
    DEVICE_MEMORY = "device_memory", "The device lacks the memory for the lesson."
    HOST_MEMORY = "host_memory", "The host lacks the memory for the lesson."
    NONFINITE_LOSS = "nonfinite_loss", "The loss of the lesson is not a finite number."
    NONFINITE_GRADIENT = "nonfinite_gradient", "The gradient of the lesson is not finite."
    SUPERSEDED = "superseded", "A later signal took the place of this one before its lesson rode."
    EXPIRED = "expired", "The lesson waited for a ride longer than it is worth."
    LANE_CANNOT_LEARN = "lane_cannot_learn", "The lane serves a model that it cannot train."
    ADAPTER_UNKNOWN = "adapter_unknown", "The lane has no such adapter."
    CANCELLED = "cancelled", "The lesson was cancelled before it was learned."
    FORGOTTEN = "forgotten", "It was forgotten: nothing of it is in an adapter, and its text is erased."


class Refusal(BaseModel):
    """Why something was not learned: what was given, what is allowed, what to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: RefusalCode
    message: str = Field(min_length=1)
    position: int | None = Field(default=None, ge=0)
    """The token position in the turn where the refusal applies, if it applies to one."""


class RefusalError(Exception):
    """Carries a refusal up to the function that returns it."""

    def __init__(self, code: RefusalCode, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message, position=position)
