"""What planning asks of a tokenizer and its chat template, and nothing more.

* The text that ``render`` returns is the whole prompt: ``encode`` adds no token to it.
* Template tokens that are written in the text are parsed as the tokens they are.
* Offsets count characters of the encoded text, not bytes. All tokens of one multi-byte character carry that
  character's offsets; a token that stands for no character is empty there (start == end).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class RenderError(Exception):
    """The chat template refuses these messages; the message says why."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text as tokens, one offset pair per token."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.offsets), f"{len(self.ids)} ids, {len(self.offsets)} offsets"


class ChatTokenizer(Protocol):
    """A tokenizer together with the chat template that the lane serves with."""

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        """The tokens that end a reply. Never empty."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        template_args: Mapping[str, object],
    ) -> str:
        """Render ``messages`` through the chat template, as serving does.

        Raises `RenderError` where the template refuses them.
        """

    def encode(self, text: str) -> Encoding:
        """Cut ``text`` into tokens."""
