"""What OpenAI's chat and legacy completions share: the parameters of drawing, and the pieces of their answers."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from daemon.dialects.answer import Answer, Event, Opening
from daemon.dialects.learn import LearnOptions
from daemon.dialects.strict import Body, GivenOnly
from daemon.http.error_answers import error_body
from daemon.http.errors import ServiceError
from daemon.http.speaker import Metadata
from engine.sampling import Sampling
from signals.records import Text

MAX_CHOICES = 8
"""Replies to one prompt; each is a turn with a slot of its own, and a lane has few."""

MAX_BIASES = 1024
"""Entries of `logit_bias`, as many as OpenAI takes of the like."""

DONE = b"data: [DONE]\n\n"


class StreamOptions(Body):
    """What a stream carries beside the reply."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


StopText = Annotated[str, Field(min_length=1)]
Stop = Annotated[tuple[StopText, ...], Field(max_length=16), BeforeValidator(_as_list)]
TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Drawing(GivenOnly):
    """The parameters that chat and legacy completions share."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop = ()
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: dict[TokenId, Bias] = Field(default_factory=dict, max_length=MAX_BIASES)
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    learn: LearnOptions = LearnOptions()
    user: Text | None = None
    """Clients send it by default; who speaks is said by header or metadata, so it changes nothing."""

    @model_validator(mode="after")
    def _streams_with_its_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream: true; leave it out otherwise")
        return self

    @property
    def with_usage(self) -> bool:
        """Does the stream end in an event with the usage?"""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, *, logprobs: int | None) -> Sampling:
        """How tokens are drawn, and how many likely ones are told for each."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            logprobs=logprobs,
        )


def frame(opening: Opening, kind: str) -> dict[str, Any]:
    """What every answer and every chunk begins with."""
    return {
        "id": opening.id,
        "object": kind,
        "created": opening.created_at_seconds,
        "model": opening.model,
        "system_fingerprint": opening.adapter,
    }


def usage(answer: Answer) -> dict[str, Any]:
    """How many tokens went in and came out; the prompt counts once, however many choices it has."""
    prompt, reply = answer.opening.prompt_tokens, answer.reply_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def failed(error: ServiceError, path: str, begun: Mapping[str, Any]) -> Event:
    """The event that ends a stream which has begun and failed."""
    return Event({**begun, **error_body(error, path)})
