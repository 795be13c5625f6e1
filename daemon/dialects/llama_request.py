"""The body of llama-server's native `POST /completion`, with that server's own defaults.

- A sampler this lane doesn't have is refused unless it is given at the value that switches it off; the other
  parameters of a sampler that is off say nothing, and may be there.
- A seed that is left to the lane is drawn here, so that the answer can tell it.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from daemon.dialects.asked import GrammarReply, JsonReply, MustBe
from daemon.dialects.learn import LearnOptions
from daemon.dialects.openai_fields import MAX_BIASES, Stop, TokenId
from daemon.dialects.strict import GivenOnly
from daemon.http.speaker import Metadata
from engine.sampling import Sampling
from signals.records import Index, JsonObject, Text

RANDOM_SEEDS = frozenset({-1, 2**32 - 1})
"""What llama-server takes for "any seed"."""

MOST_PROBS = 100
"""Likely tokens told for each token: more than any sampler leaves to choose from."""

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""In which order this lane applies them, by llama-server's names."""

_NOTHING_WITHOUT = {
    "mirostat": ("mirostat_tau", "mirostat_eta"),
    "dynatemp_range": ("dynatemp_exponent",),
    "dry_multiplier": ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    "xtc_probability": ("xtc_threshold",),
}
"""Parameters that belong to a sampler, and mean nothing while it is off."""

Piece = Index | Text
Finite = Annotated[float, Field(allow_inf_nan=False)]
Bias = Literal[False] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _as_pairs(biases: object) -> object:
    return list(biases.items()) if isinstance(biases, dict) else biases


class LlamaRequest(GivenOnly):
    """What is asked for."""

    prompt: Text | Annotated[tuple[Piece, ...], Field(fail_fast=True)]
    n_predict: Annotated[int, Field(ge=-1)] = -1
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.8
    top_k: Annotated[int, Field(ge=-1)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.05
    typical_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    repeat_penalty: Annotated[Finite, Field(gt=0)] = 1.0
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    repeat_last_n: Annotated[int, Field(ge=-1)] = -1
    seed: Annotated[int, Field(ge=-1, lt=2**63)] = Field(-1, validate_default=True)
    stop: Stop = ()
    logit_bias: Annotated[
        tuple[tuple[TokenId, Bias], ...], Field(max_length=MAX_BIASES), BeforeValidator(_as_pairs)
    ] = ()
    n_probs: Annotated[int, Field(ge=0, le=MOST_PROBS)] = 0
    grammar: Text = ""
    json_schema: JsonObject | None = None
    id_slot: Annotated[int, Field(ge=-1)] = -1
    stream: bool = False
    return_tokens: bool = False
    cache_prompt: Literal[True] = True
    model: Text | None = None
    metadata: Metadata | None = None
    learn: LearnOptions = LearnOptions()

    mirostat: float = 0
    dynatemp_range: float = 0
    dry_multiplier: float = 0
    xtc_probability: float = 0
    top_n_sigma: float = -1
    ignore_eos: bool = False
    min_keep: float = 0
    n_keep: float = 0
    n_discard: float = 0
    n_indent: float = 0
    n_cache_reuse: float = 0
    t_max_predict_ms: float = 0
    timings_per_token: bool = False
    return_progress: bool = False
    post_sampling_probs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_what_says_nothing(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        idle = {name for names in _NOTHING_WITHOUT.values() for name in names}
        return {name: value for name, value in body.items() if name not in idle}

    @field_validator("prompt")
    @classmethod
    def _is_one(cls, prompt: str | tuple[Any, ...]) -> str | tuple[Any, ...]:
        if not isinstance(prompt, str) and len(prompt) > 1 and all(isinstance(piece, str) for piece in prompt):
            raise ValueError(f"{len(prompt)} prompts are not supported in one request; send them one by one")
        return prompt

    @field_validator("n_predict")
    @classmethod
    def _predicts_something(cls, tokens: int) -> int:
        if tokens == 0:
            raise ValueError("a turn draws at least one token; give 1 or more, or -1 for up to the context's end")
        return tokens

    @field_validator("seed")
    @classmethod
    def _is_known(cls, seed: int) -> int:
        return secrets.randbits(31) if seed in RANDOM_SEEDS else seed

    @field_validator(
        *("mirostat", "dynatemp_range", "dry_multiplier", "xtc_probability", "top_n_sigma", "ignore_eos"),
        *("min_keep", "n_keep", "n_discard", "n_indent", "n_cache_reuse", "t_max_predict_ms"),
        *("timings_per_token", "return_progress", "post_sampling_probs"),
    )
    @classmethod
    def _is_off(cls, value: float, info: ValidationInfo) -> float:
        off = cls.model_fields[str(info.field_name)].default
        if value != off:
            raise ValueError(f"this lane does not have it; leave it out, or give {off}, which switches it off")
        return value

    @field_validator("repeat_last_n")
    @classmethod
    def _is_everything(cls, tokens: int, info: ValidationInfo) -> int:
        off = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        if tokens != -1 and any(info.data.get(name, value) != value for name, value in off.items()):
            raise ValueError("this lane's penalties look at all there is; leave it out, or give -1")
        return tokens

    @field_validator("json_schema")
    @classmethod
    def _is_alone(cls, schema: object, info: ValidationInfo) -> object:
        if schema is not None and info.data.get("grammar"):
            raise ValueError("the reply cannot be held to a schema and to a grammar; give one of them")
        return schema

    @property
    def must_be(self) -> MustBe | None:
        """What the reply has to be, if anything."""
        if self.json_schema is not None:
            return JsonReply(self.json_schema, param="json_schema")
        return GrammarReply(self.grammar) if self.grammar else None

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        biases = ((token, float("-inf") if bias is False else bias) for token, bias in self.logit_bias)
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            typical_p=self.typical_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repeat_penalty,
            logit_bias=tuple(biases),
            logprobs=self.n_probs or None,
        )

    def settings(self) -> Mapping[str, Any]:
        """What was used, by llama-server's names."""
        told = self.model_dump(mode="json", exclude=_NO_SETTINGS)
        biases = [{"token": token, "bias": bias} for token, bias in self.logit_bias]
        return told | {"max_tokens": self.n_predict, "logit_bias": biases, "samplers": list(SAMPLERS)}


_NO_SETTINGS = {"prompt", "model", "metadata", "learn", "id_slot", "cache_prompt", "return_tokens"}
"""Of the request's fields, those that llama-server doesn't count among its generation settings."""
