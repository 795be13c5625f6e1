"""The conversation's one way into tokens: the chat template the lane serves with, and its tokenizer.

- Completions and lessons go through the same render and the same encode, so that what a lesson compares
  with is what was served, by construction.
- Rendering needs no torch; a template that cannot render a conversation says so as `RenderError`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

from jinja2 import TemplateError as JinjaError
from transformers import PreTrainedTokenizerFast

from daemon.text.token_text import TokenTexts
from signals.tokens import Encoding, RenderError

RESERVED_ARGS = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters)
"""What rendering decides itself; a client's template arguments may be anything else."""


class HuggingFaceChat:
    """A fast tokenizer and its chat template, as the planner and the completions see them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, end_of_turn_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.end_of_turn_ids = end_of_turn_ids

    @property
    def has_template(self) -> bool:
        """Does the model come with a chat template?"""
        return self._tokenizer.chat_template is not None

    @property
    def template(self) -> str:
        """The template's text; of several by name, all of them."""
        template = self._tokenizer.chat_template
        return "\n".join(template.values()) if isinstance(template, dict) else template or ""

    @property
    def vocabulary_tokens(self) -> int:
        """How many tokens the tokenizer knows."""
        return self._tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def longest_token_chars(self) -> int:
        """Characters of the longest token, so that no text of n tokens has more than n times as many."""
        return max(map(len, self._tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)))

    @property
    def token_texts(self) -> TokenTexts:
        """The text of each token by itself."""
        return TokenTexts(self._tokenizer.backend_tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        template_args: Mapping[str, object],
    ) -> str:
        """The conversation as the model reads it.

        Raises:
            RenderError: there is no template, or it refuses the conversation.
        """
        if not self.has_template:
            raise RenderError("this model comes without a chat template; serve an instruct model to chat with it")
        try:
            apply: Callable[..., object] = self._tokenizer.apply_chat_template
            text = apply(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **template_args,
            )
        except (JinjaError, ValueError, TypeError, KeyError) as error:
            raise RenderError(f"the model's chat template refuses this conversation: {error}") from error
        return str(text)

    def encode(self, text: str) -> Encoding:
        """Token ids and character offsets of a text; the template's own tokens are recognised in it."""
        encoded = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        return Encoding(ids=tuple(encoded.ids), offsets=tuple(encoded.offsets))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included; what is no whole character is U+FFFD."""
        return self._tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=False)

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt that no template wrote, begun as the tokenizer begins a text."""
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=True).ids)
