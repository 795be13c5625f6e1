"""llama-server's native completions, `POST /completion`: a prompt as it stands, answered with its timings.

- The chunks of a stream carry text and tokens as they become certain; the last one is the account of them all.
- `tokens_cached` is how many tokens of the prompt its slot held already; prompt times are from the moment it was
  submitted, the wait for a slot included.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daemon.dialects.answer import Answer, Choice, Delta, Event, Opening
from daemon.dialects.asked import Asked, RawPrompt
from daemon.dialects.dialect import EventWriter
from daemon.dialects.llama_request import LlamaRequest
from daemon.http.error_answers import error_body
from daemon.http.errors import ServiceError
from daemon.serving.turns import Limits
from daemon.text.chat_template import HuggingFaceChat
from daemon.text.reply_format import Content
from daemon.text.token_text import Logprob
from engine.orders import TurnEnded

PATH = "/completion"


class LlamaCompletion:
    """The dialect."""

    path = PATH
    request = LlamaRequest
    closing = b""

    def __init__(self, chat: HuggingFaceChat) -> None:
        self._chat = chat

    def asked(self, request: LlamaRequest) -> Asked:
        """What the request asks for."""
        limits = Limits(
            max_tokens=None if request.n_predict == -1 else request.n_predict,
            stop=request.stop,
            sampling=request.sampling,
            slot=None if request.id_slot == -1 else request.id_slot,
        )
        return Asked(
            model=request.model,
            prompt=RawPrompt(request.prompt),
            limits=limits,
            metadata=request.metadata,
            must_be=request.must_be,
            learn=request.learn,
            stream=request.stream,
        )

    def body(self, request: LlamaRequest, answer: Answer) -> Mapping[str, Any]:
        """The answer that isn't streamed."""
        (choice,) = answer.choices
        tokens = list(choice.ended.reply_tokens) if request.return_tokens else []
        said = {"index": 0, "content": choice.text, "tokens": tokens}
        probabilities = {"completion_probabilities": _told(choice.logprobs)} if choice.logprobs else {}
        return said | self._account(request, answer) | probabilities

    def writer(self, request: LlamaRequest, opening: Opening) -> EventWriter:
        """Writes the chunks of a stream."""
        return _Chunks(self, request, opening)

    def last(self, request: LlamaRequest, answer: Answer, *, untold: Sequence[int]) -> Mapping[str, Any]:
        """The end of a stream, with the tokens that no text came of."""
        return {"index": 0, "content": "", "tokens": list(untold)} | self._account(request, answer)

    def _account(self, request: LlamaRequest, answer: Answer) -> dict[str, Any]:
        (choice,) = answer.choices
        ended, opening = choice.ended, answer.opening
        return {
            "id_slot": ended.slot,
            "stop": True,
            "model": opening.model,
            "tokens_predicted": len(ended.reply_tokens),
            "tokens_evaluated": opening.prompt_tokens,
            "generation_settings": request.settings(),
            "prompt": self._text(request.prompt),
            "has_new_line": "\n" in choice.text,
            "truncated": False,
            "stop_type": _stop_type(choice),
            "stopping_word": choice.stopped_by or "",
            "tokens_cached": ended.cached_tokens,
            "timings": _timings(ended, opening.prompt_tokens),
        }

    def _text(self, prompt: str | tuple[int | str, ...]) -> str:
        """The prompt as text, its tokens written out."""
        text, tokens = "", list[int]()
        for piece in (prompt,) if isinstance(prompt, str) else (*prompt, ""):
            if isinstance(piece, int):
                tokens.append(piece)
            else:
                text, tokens = text + self._chat.decode(tokens) + piece, []
        return text


class _Chunks:
    """One stream's chunks."""

    def __init__(self, dialect: LlamaCompletion, request: LlamaRequest, opening: Opening) -> None:
        self._dialect = dialect
        self._request = request
        self._opening = opening
        self._told = 0

    def begin(self) -> Iterator[Event]:
        yield from ()

    def delta(self, delta: Delta) -> Iterator[Event]:
        self._told += len(delta.tokens)
        chunk = {
            "index": 0,
            "content": "".join(part.text for part in delta.parts if isinstance(part, Content)),
            "tokens": list(delta.tokens),
            "stop": False,
            "tokens_predicted": self._told,
            "tokens_evaluated": self._opening.prompt_tokens,
        }
        yield Event(chunk | ({"completion_probabilities": _told(delta.logprobs)} if delta.logprobs else {}))

    def end(self, answer: Answer) -> Iterator[Event]:
        untold = answer.choices[0].ended.reply_tokens[self._told :]
        yield Event(self._dialect.last(self._request, answer, untold=untold))

    def error(self, error: ServiceError) -> Event:
        return Event(error_body(error, PATH))


def _stop_type(choice: Choice) -> str:
    if choice.stopped_by is not None:
        return "word"
    return "limit" if choice.finish == "length" else "eos"


def _timings(ended: TurnEnded, prompt_tokens: int) -> dict[str, float | None]:
    first = ended.first_token_seconds
    assert first is not None, f"turn {ended.turn} was answered without a token"
    read, drawn = prompt_tokens - ended.cached_tokens, len(ended.reply_tokens)
    return {
        "cache_n": ended.cached_tokens,
        **_pace("prompt", read, first * 1000),
        **_pace("predicted", drawn, (ended.total_seconds - first) * 1000),
    }


def _pace(what: str, tokens: int, milliseconds: float) -> dict[str, float | None]:
    """How many tokens in how long. A reply of one token came with its prompt, in no time of its own."""
    return {
        f"{what}_n": tokens,
        f"{what}_ms": milliseconds,
        f"{what}_per_token_ms": milliseconds / tokens if tokens else None,
        f"{what}_per_second": tokens * 1000 / milliseconds if milliseconds else None,
    }


def _told(logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
    return [_one(token) | {"top_logprobs": [_one(other) for other in token.top]} for token in logprobs]


def _one(token: Logprob) -> dict[str, Any]:
    return {"id": token.token, "token": token.text, "bytes": list(token.bytes), "logprob": token.logprob}
