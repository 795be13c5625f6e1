"""Corrections: the reply that should have been said, in tokens, after what the turn was served.

* What comes before it was served: the turn's prompt, its first tokens, or a conversation that renders to them.
* Where the chat template wrote what comes before, it writes the reply too: its text, or its tool calls, then the
  end of the turn. After a raw prompt the text is encoded as it stands, and ended as the turn's own reply was.
* Token ids are learned as they are given, and nothing is put after them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from signals.records import Correction, ReplyMessage, Turn
from signals.refusals import RefusalCode, RefusalError
from signals.replies import reasoning_reply, require_plain, require_unmarked, tool_call_reply
from signals.served import Run, first_difference, token_at
from signals.spans import PlacedContent, Span, place_content, token_span
from signals.tokens import ChatTokenizer, RenderError


@dataclass(frozen=True, slots=True)
class _Conversation:
    """Messages that a reply follows, and what the template is given beside them."""

    messages: Sequence[Mapping[str, object]]
    template_args: Mapping[str, object]

    def prompt(self, tokenizer: ChatTokenizer) -> str:
        return tokenizer.render(self.messages, add_generation_prompt=True, template_args=self.template_args)

    def with_reply(self, reply: Mapping[str, object], tokenizer: ChatTokenizer) -> str:
        return tokenizer.render(
            [*self.messages, reply], add_generation_prompt=False, template_args=self.template_args
        )


@dataclass(frozen=True, slots=True)
class _Before:
    """What comes before the reply: its tokens, and the conversation that the template wrote them from."""

    tokens: tuple[int, ...]
    conversation: _Conversation | None


def correction_run(correction: Correction, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    """Find the tokens of the corrected reply. Raises as `signals.runs.find_run`."""
    before = _before(correction, turn, tokenizer)
    reply = correction.reply_tokens or _reply(correction, turn, before.conversation, tokenizer)
    sequence = before.tokens + reply
    return Run(sequence, Span(len(before.tokens), len(sequence)))


def _before(correction: Correction, turn: Turn, tokenizer: ChatTokenizer) -> _Before:
    served = turn.prompt_tokens + turn.reply_tokens
    if correction.messages is not None:
        args = turn.template_args if correction.template_args is None else correction.template_args
        given = _Conversation([message.for_template() for message in correction.messages], args)
        tokens = tokenizer.encode(given.prompt(tokenizer)).ids
        _require_begun(tokens, served, turn)
        return _Before(tokens, given)
    count = correction.prefix_tokens or len(turn.prompt_tokens)
    if count > len(served):
        raise RefusalError(
            RefusalCode.UNSERVED_PREFIX,
            f"The reply comes after {count} tokens, and turn {turn.id} has {len(served)}. Give at most that many.",
            position=len(served),
        )
    own = _Conversation([message.for_template() for message in turn.messages], turn.template_args)
    written = bool(turn.messages) and count == len(turn.prompt_tokens)
    return _Before(served[:count], own if written else None)


def _require_begun(tokens: tuple[int, ...], served: tuple[int, ...], turn: Turn) -> None:
    """Refuse a conversation that does not render to the first tokens of what was served."""
    at = first_difference(tokens, served)
    if at < len(tokens):
        raise RefusalError(
            RefusalCode.UNSERVED_PREFIX,
            f"What comes before the reply has {token_at(tokens, at)} at position {at}, where turn {turn.id} was "
            f"served {token_at(served, at)}. Send the conversation as it was served, template arguments and tools "
            "included.",
            position=at,
        )


def _reply(
    correction: Correction, turn: Turn, conversation: _Conversation | None, tokenizer: ChatTokenizer
) -> tuple[int, ...]:
    reply = correction.reply
    assert reply is not None, f"correction {correction.id} says no reply"
    if conversation is None:
        return _raw_tokens(_plain_text(reply), turn, tokenizer)
    if isinstance(reply, ReplyMessage) and reply.tool_calls:
        return _called_tokens(reply, conversation, tokenizer)
    return _said_tokens(_plain_text(reply), conversation, tokenizer)


def _plain_text(reply: str | ReplyMessage) -> str:
    """Return the reply's text where the text is all of it."""
    if isinstance(reply, str):
        return require_plain(reply)
    if reply.tool_calls:
        raise tool_call_reply("tool_calls")
    if reply.reasoning_content:
        raise reasoning_reply("reasoning_content")
    return require_plain(reply.content or "")


def _raw_tokens(text: str, turn: Turn, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Return the text's tokens, then the token that ended the turn's own reply, if one did."""
    ended = (token for token in turn.reply_tokens[-1:] if token in tokenizer.end_of_turn_ids)
    return (*tokenizer.encode(text).ids, next(ended, min(tokenizer.end_of_turn_ids)))


def _said_tokens(text: str, conversation: _Conversation, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Return the text's tokens, then the end of the turn as the template writes it."""
    placed = place_content(
        [*conversation.messages, {"role": "assistant", "content": text}],
        len(conversation.messages),
        tokenizer=tokenizer,
        add_generation_prompt=False,
        template_args=conversation.template_args,
    )
    rest = _after_prompt(placed.text, conversation.prompt(tokenizer), placed)
    encoding = tokenizer.encode(rest)
    length = len(placed.content)
    said = encoding.ids[: token_span(encoding.offsets, Span(0, length)).end]
    ends = (
        token
        for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)
        if start >= length and token in tokenizer.end_of_turn_ids
    )
    return (*said, next(ends, min(tokenizer.end_of_turn_ids)))


def _called_tokens(reply: ReplyMessage, conversation: _Conversation, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Return all that the template writes of a reply with tool calls, to the end of the turn."""
    if reply.reasoning_content:
        raise reasoning_reply("reasoning_content")
    said = {"role": "assistant", "content": require_unmarked(reply.content or "")}
    text = conversation.with_reply({**said, "tool_calls": list(reply.tool_calls or ())}, tokenizer)
    if text == _without_calls(said, conversation, tokenizer):
        raise tool_call_reply("tool_calls")
    ids = tokenizer.encode(_after_prompt(text, conversation.prompt(tokenizer))).ids
    ends = [at for at, token in enumerate(ids) if token in tokenizer.end_of_turn_ids]
    return ids[: ends[-1] + 1] if ends else (*ids, min(tokenizer.end_of_turn_ids))


def _without_calls(
    said: Mapping[str, object], conversation: _Conversation, tokenizer: ChatTokenizer
) -> str | None:
    """Render the reply less its calls; a template may refuse one that then says nothing."""
    try:
        return conversation.with_reply(said, tokenizer)
    except RenderError:
        return None


def _after_prompt(text: str, prompt: str, placed: PlacedContent | None = None) -> str:
    """Return what the template writes after the prompt: the reply, its content first where that is ``placed``."""
    if not text.startswith(prompt) or (placed is not None and placed.content.start != len(prompt)):
        raise RefusalError(
            RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
            "The chat template does not write a corrected reply right after the prompt that was served. "
            "Serve with template arguments that make it do so, such as reasoning switched off.",
        )
    return text[len(prompt) :]
