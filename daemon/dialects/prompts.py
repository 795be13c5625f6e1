"""From what is asked to a prompt: rendered through the chat template, tokenized, with the parser of its reply.

- One way for every dialect. It takes time: call it on a thread.
- What the template would leave out is refused: tools that it doesn't write, calls that it forgets.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from daemon.dialects.asked import Asked, Conversation, RawPrompt
from daemon.dialects.held_to import held_to
from daemon.http.errors import BadRequest
from daemon.http.limits import TextLimit
from daemon.serving.open_turn import Prompt
from daemon.text.chat_template import RESERVED_ARGS, HuggingFaceChat
from daemon.text.grammar import Grammars
from daemon.text.reply_format import ReplyFormat, ReplyParser
from engine.constraint import Constraint
from signals.tokens import RenderError
from store.columns import JsonValue

PLAIN = ReplyFormat()
"""The format of a reply to a raw prompt: text."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt ready to be served; `parser` and `constraint` are made anew for each choice's reply."""

    prompt: Prompt
    text: str
    parser: Callable[[], ReplyParser]
    constraint: Callable[[], Constraint] | None = None


class Prompts:
    """Prepares prompts with the lane's tokenizer and chat template."""

    def __init__(self, chat: HuggingFaceChat, grammars: Grammars, texts: TextLimit) -> None:
        self.chat = chat
        self.texts = texts
        self._grammars = grammars
        self.format = ReplyFormat.of_template(chat.template)

    def prepare(self, asked: Asked) -> Prepared:
        """Render and tokenize.

        Raises:
            BadRequest: the chat template refuses the conversation or leaves some of it out; a token is unknown;
                what the reply must be cannot be enforced.
        """
        match asked.prompt:
            case Conversation() as conversation:
                prepared, tools = self._converse(conversation), conversation.tools
            case RawPrompt() as raw:
                prepared, tools = self._continue(raw), ()
        if asked.must_be is None:
            return prepared
        grammar = held_to(asked.must_be, self._grammars, format_=self.format, tools=tools, prompt=prepared.text)
        return replace(prepared, constraint=grammar.begin)

    def _converse(self, asked: Conversation) -> Prepared:
        _check_args(asked.template_args)
        messages = [message.for_template() for message in asked.messages]
        tools = [tool.for_template() for tool in asked.tools]
        args = {**asked.template_args, **({"tools": tools} if tools else {})}
        text = self._render(messages, args, param=asked.param)
        self.texts.check(text, param=asked.param)
        if tools and text == self._render(messages, asked.template_args, param=asked.param):
            raise BadRequest(
                "tools: this model's chat template has no place for tools, so it would never hear of them; "
                "leave them out, or serve a model that was trained to call tools",
                param="tools",
            )
        self._check_calls(messages, args, text, param=asked.param)
        prompt = Prompt(
            tokens=self.chat.encode(text).ids,
            messages=cast(Sequence[Mapping[str, JsonValue]], messages),
            template_args=cast(Mapping[str, JsonValue], args),
            param=asked.param,
        )
        names = frozenset(tool.name for tool in asked.tools)
        parser = partial(self.format.parser, prompt=text, tools=names, new_id=_new_call_id)
        return Prepared(prompt, text, parser)

    def _continue(self, asked: RawPrompt) -> Prepared:
        tokens = self._tokens(asked.content, param=asked.param)
        text = asked.content if isinstance(asked.content, str) else ""
        unknown = next((token for token in tokens if not 0 <= token < self.chat.vocabulary_tokens), None)
        if unknown is not None:
            raise BadRequest(
                f"{asked.param}: there is no token {unknown}; this model's tokens are 0 to "
                f"{self.chat.vocabulary_tokens - 1}",
                param=asked.param,
            )
        prompt = Prompt(tokens=tokens, messages=[], template_args={}, param=asked.param)
        parser = partial(PLAIN.parser, prompt="", tools=frozenset(), new_id=_new_call_id)
        return Prepared(prompt, text, parser)

    def _tokens(self, content: str | tuple[int | str, ...], *, param: str) -> tuple[int, ...]:
        """The tokens of a raw prompt. Only a text at its beginning is begun as the tokenizer begins a text."""
        tokens: list[int] = []
        pieces = (content,) if isinstance(content, str) else content
        self.texts.check("".join(piece for piece in pieces if isinstance(piece, str)), param=param)
        for piece in pieces:
            if isinstance(piece, int):
                tokens.append(piece)
            else:
                tokens += self.chat.encode(piece).ids if tokens else self.chat.encode_prompt(piece)
        return tuple(tokens)

    def _render(self, messages: Sequence[Mapping[str, object]], args: Mapping[str, object], *, param: str) -> str:
        try:
            return self.chat.render(messages, add_generation_prompt=True, template_args=args)
        except RenderError as error:
            raise BadRequest(str(error), param=param) from error

    def _check_calls(
        self, messages: Sequence[Mapping[str, object]], args: Mapping[str, object], text: str, *, param: str
    ) -> None:
        """Refuse a conversation whose tool calls the template leaves out."""
        without = [{key: value for key, value in message.items() if key != "tool_calls"} for message in messages]
        if without != messages and text == self._render(without, args, param=param):
            raise BadRequest(
                f"{param}: this model's chat template leaves tool_calls out, so it would not know what it called; "
                "leave them out, or serve a model that was trained to call tools",
                param=param,
            )


def _check_args(args: Mapping[str, object]) -> None:
    taken = next((name for name in args if name in RESERVED_ARGS), None)
    if taken is not None:
        raise BadRequest(
            f"chat_template_kwargs: {taken!r} is not the request's to say; give what the template itself reads",
            param="chat_template_kwargs",
        )


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"
