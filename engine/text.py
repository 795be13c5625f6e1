"""A reply's text as its tokens come: whole characters only, and nothing that may turn out to be a stop string.

- `push` gives the text that is certain; what may still become a stop string or half a character is held back.
- A stop string ends the reply and is not part of it; `finish` gives the rest when the reply ends otherwise.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class ReplyText:
    """Incremental text of one reply."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._held = ""
        self._tokens: list[int] = []
        self._decoded = 0
        self._ends: list[int] = []
        self.text = ""
        self.stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Has a stop string, `stop`, ended the reply?"""
        return self.stop is not None

    def push(self, token: int) -> str:
        """Take the next token; returns the text that has become certain."""
        self._tokens.append(token)
        piece = self._stream.step(self._tokenizer, token)
        text = self._take(piece) if piece else ""
        self._ends.append(self._decoded)
        return text

    def kept_tokens(self, count: int) -> int:
        """How many of the reply's `count` tokens make its text: all, but for those of a stop string."""
        if not self.stopped:
            return count
        return sum(end <= len(self.text) for end in self._ends)

    def finish(self) -> str:
        """The text still held back, half a character included, now that no token follows."""
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return self._release(self._held + whole[self._decoded :])

    def _take(self, piece: str) -> str:
        self._decoded += len(piece)
        self._held += piece
        first = min(((at, s) for s in self._stop if (at := self._held.find(s)) >= 0), default=None)
        if first is not None:
            at, self.stop = first  # of two at one place the shorter, which was whole first
            return self._release(self._held[:at])
        return self._release(self._held[: len(self._held) - self._may_be_stop()])

    def _may_be_stop(self) -> int:
        """How many of the last held characters are the beginning of a stop string."""
        lengths = (
            n
            for stop in self._stop
            for n in range(min(len(stop) - 1, len(self._held)), 0, -1)
            if self._held.endswith(stop[:n])
        )
        return max(lengths, default=0)

    def _release(self, text: str) -> str:
        self._held = self._held[len(text) :]
        self.text += text
        return text
