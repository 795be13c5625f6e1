"""One choice of an answer, read from its turn's events: its deltas as they come, and the whole at its end.

- A token and its log probability go with the text that it, or the tokens after it, made certain. Tokens that ended
  the reply are not told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.dialects.answer import Choice, Delta, Finish, joined
from daemon.text.reply_format import Part, ReplyParser, ToolCall
from daemon.text.token_text import Logprob, TokenTexts
from engine.orders import TokenServed, TurnEnded
from engine.sampling import TokenLogprob


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A token of the reply, with its log probability where it was asked for."""

    token: int
    logprob: Logprob | None


class ChoiceReader:
    """Reads one choice."""

    def __init__(self, index: int, parser: ReplyParser, texts: TokenTexts, *, end_tokens: frozenset[int]) -> None:
        self.index = index
        self._parser = parser
        self._texts = texts
        self._end_tokens = end_tokens
        self._deltas: list[Delta] = []
        self._parts: list[Part] = []
        self._told: list[_Drawn] = []
        self._untold: list[_Drawn] = []

    def take(self, event: TokenServed | TurnEnded) -> Delta | None:
        """What an event of the turn made certain, if anything."""
        parts = self._parser.push(event.text)
        match event:
            case TokenServed(token=token, logprob=logprob):
                self._untold.append(_Drawn(token, None if logprob is None else self._logprob(logprob)))
                told = self._untold if parts else []
            case TurnEnded():
                parts += self._parser.finish()
                kept = sum(token not in self._end_tokens for token in event.reply_tokens)
                told = self._untold[: max(0, kept - len(self._told))]
        self._untold = self._untold[len(told) :]
        self._parts += parts
        self._told += told
        logprobs, tokens = _logprobs(told), tuple(drawn.token for drawn in told)
        if not parts and not logprobs:
            return None
        self._deltas.append(Delta(self.index, tuple(parts), logprobs, tokens))
        return self._deltas[-1]

    def choice(self, ended: TurnEnded, *, with_logprobs: bool) -> Choice:
        """The choice, whole."""
        parts = joined(self._parts)
        logprobs = _logprobs(self._told) if with_logprobs else None
        return Choice(self.index, parts, _finish(ended, parts), ended, logprobs, tuple(self._deltas))

    def _logprob(self, served: TokenLogprob) -> Logprob:
        top = tuple(self._one(token, logprob) for token, logprob in served.top)
        return self._one(served.token, served.logprob, top)

    def _one(self, token: int, logprob: float, top: tuple[Logprob, ...] = ()) -> Logprob:
        return Logprob(token, self._texts.text_of(token), self._texts.bytes_of(token), logprob, top)


def _logprobs(drawn: Sequence[_Drawn]) -> tuple[Logprob, ...]:
    return tuple(one.logprob for one in drawn if one.logprob is not None)


def _finish(ended: TurnEnded, parts: tuple[Part, ...]) -> Finish:
    if ended.reason == "length":
        return "length"
    return "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
