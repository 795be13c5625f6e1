"""What single tokens say: their text, their bytes, and their log probabilities as answers tell them."""

import re
from dataclasses import dataclass

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "▁"


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token, its log probability, and the likeliest tokens in its place where they were asked for."""

    token: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple["Logprob", ...] = ()


class TokenTexts:
    """The text and the bytes of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        self._byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; half a character is half its bytes."""
        piece = self._tokenizer.id_to_token(token) or ""
        if self._byte_level and all(character in _BYTES for character in piece):
            return bytes(_BYTES[character] for character in piece)
        if found := _BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(found[1])
        return (piece if self._byte_level else piece.replace(_WORD_START, " ")).encode()

    def text_of(self, token: int) -> str:
        """The text of a token; what is no whole character is written as U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")


def _byte_characters() -> dict[str, int]:
    """Byte-level vocabularies' characters and the bytes they stand for (Radford et al., GPT-2, encoder.py)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_characters()
