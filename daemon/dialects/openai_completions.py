"""OpenAI's legacy completions, `POST /v1/completions`: a prompt as it stands, without a chat template."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from daemon.dialects.answer import Answer, Choice, Delta, Event, Opening
from daemon.dialects.asked import Asked, RawPrompt
from daemon.dialects.dialect import EventWriter
from daemon.dialects.openai_fields import DONE, Drawing, TokenId, failed, frame, usage
from daemon.http.errors import ServiceError
from daemon.serving.turns import Limits
from daemon.text.reply_format import Content
from daemon.text.token_text import Logprob
from signals.records import Text

PATH = "/v1/completions"


def _only_one(prompt: object) -> object:
    """A list of one prompt is that prompt; several are refused."""
    if not (isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)):
        return prompt
    if len(prompt) > 1:
        raise ValueError(f"{len(prompt)} prompts are not supported in one request; send them one by one")
    return prompt[0]


def _kind(prompt: object) -> str:
    return "text" if isinstance(prompt, str) else "tokens"


RawText = Annotated[Text, Tag("text")]
RawTokens = Annotated[tuple[TokenId, ...], Tag("tokens")]


class CompletionRequest(Drawing):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[RawText | RawTokens, Discriminator(_kind), BeforeValidator(_only_one)]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] = False


class OpenAICompletions:
    """The dialect."""

    path = PATH
    request = CompletionRequest
    closing = DONE

    def asked(self, request: CompletionRequest) -> Asked:
        """What the request asks for."""
        sampling = request.sampling(logprobs=request.logprobs)
        return Asked(
            model=request.model,
            prompt=RawPrompt(request.prompt),
            limits=Limits(request.max_tokens, request.stop, sampling),
            metadata=request.metadata,
            choices=request.n,
            learn=request.learn,
            stream=request.stream,
        )

    def body(self, _request: CompletionRequest, answer: Answer) -> Mapping[str, Any]:
        """The answer that isn't streamed."""
        choices = [_choice(choice) for choice in answer.choices]
        return frame(answer.opening, "text_completion") | {"choices": choices, "usage": usage(answer)}

    def writer(self, request: CompletionRequest, opening: Opening) -> EventWriter:
        """Writes the chunks of a stream."""
        return _Chunks(request, opening)


class _Chunks:
    """One stream's chunks."""

    def __init__(self, request: CompletionRequest, opening: Opening) -> None:
        self._request = request
        self._frame = frame(opening, "text_completion")
        self._offsets = [0] * len(opening.turns)

    def begin(self) -> Iterator[Event]:
        yield from ()

    def delta(self, delta: Delta) -> Iterator[Event]:
        text = "".join(part.text for part in delta.parts if isinstance(part, Content))
        told = None
        if delta.logprobs:
            told = _logprobs(delta.logprobs, offset=self._offsets[delta.choice])
            self._offsets[delta.choice] += sum(len(token.text) for token in delta.logprobs)
        yield self._chunk(delta.choice, text, told=told)

    def end(self, answer: Answer) -> Iterator[Event]:
        for choice in answer.choices:
            yield self._chunk(choice.index, "", finish=choice.finish)
        if self._request.with_usage:
            yield Event(self._frame | {"choices": [], "usage": usage(answer)})

    def error(self, error: ServiceError) -> Event:
        return failed(error, PATH, self._frame)

    def _chunk(
        self, choice: int, text: str, *, finish: str | None = None, told: Mapping[str, Any] | None = None
    ) -> Event:
        entry = {"index": choice, "text": text, "logprobs": told, "finish_reason": finish}
        return Event(self._frame | {"choices": [entry]})


def _choice(choice: Choice) -> dict[str, Any]:
    told = None if choice.logprobs is None else _logprobs(choice.logprobs, offset=0)
    return {"index": choice.index, "text": choice.text, "logprobs": told, "finish_reason": choice.finish}


def _logprobs(logprobs: tuple[Logprob, ...], *, offset: int) -> dict[str, Any]:
    """Log probabilities as legacy completions tell them; the first token stands at `offset` of the text."""
    offsets = []
    for token in logprobs:
        offsets.append(offset)
        offset += len(token.text)
    top = [{_name(other): other.logprob for other in token.top} for token in logprobs]
    return {
        "tokens": [_name(token) for token in logprobs],
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": top if any(top) else None,
        "text_offset": offsets,
    }


def _name(token: Logprob) -> str:
    """A token's text, or its bytes where they are no whole character."""
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
