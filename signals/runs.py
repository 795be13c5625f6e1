"""Runs: the tokens that a signal asks to have learned, in the sequence they stand in.

* What is learned as perceived or as said was served so: token by token, or it is refused with the first
  position that differs. Only a correction puts tokens of its own after the served prompt.
* A reply is learned as its text then the end of the turn.
* A reply whose substance is elsewhere, in tool calls or in reasoning, is refused as a whole.
"""

from dataclasses import dataclass
from typing import assert_never

from signals.records import Action, Correction, Engram, ReplyMessage, Turn
from signals.refusals import RefusalCode, RefusalError
from signals.spans import PlacedContent, Span, locate, place_content, token_span
from signals.tokens import ChatTokenizer

LessonSignal = Engram | Correction | Action
"""The signals that make a lesson. A relevance changes its weight; a verdict, whether there is one."""

TOOL_CALL_MARKERS = ("<tool_call>", "<function=", "<|tool_call", "<|python_tag|>", "[TOOL_CALLS]")
"""How the templates of the field open a tool call in the text of a reply."""

REASONING_MARKERS = ("<think>", "</think>", "<|channel|>analysis")
"""How they mark reasoning; where the prompt has opened it already, the reply shows its end alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens to be learned, ``sequence[span.start:span.end]``, and all that comes before them."""

    sequence: tuple[int, ...]
    span: Span


def find_run(signal: LessonSignal, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    """Find the tokens that ``signal`` asks to have learned.

    Raises `RefusalError` where they are not there, were not served so, or are no plain reply, and
    `RenderError` where the chat template refuses the messages.
    """
    match signal:
        case Engram():
            return _engram_run(signal, turn, tokenizer)
        case Correction():
            return _correction_run(signal, turn, tokenizer)
        case Action():
            return _reply_run(turn)
        case _:
            assert_never(signal)


def _engram_run(engram: Engram, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    place = locate(engram, turn)
    if place.message != turn.reply_index:
        return _prompt_span_run(turn, place.message, place.characters, tokenizer)
    if engram.whole_message:
        return _reply_run(turn)
    return _reply_span_run(turn, place.characters, tokenizer)


def _prompt_span_run(turn: Turn, message: int, characters: Span, tokenizer: ChatTokenizer) -> Run:
    placed = place_content(
        [message.for_template() for message in turn.messages],
        message,
        tokenizer=tokenizer,
        add_generation_prompt=True,
        template_args=turn.template_args,
    )
    encoding = tokenizer.encode(placed.text)
    _require_served(encoding.ids, served=turn.prompt_tokens, position=0)
    return Run(turn.prompt_tokens, token_span(encoding.offsets, placed.within(characters)))


def _reply_span_run(turn: Turn, characters: Span, tokenizer: ChatTokenizer) -> Run:
    reply_start = len(turn.prompt_tokens)
    encoding = tokenizer.encode(turn.reply_text)
    served = _without_end_of_turn(turn.reply_tokens, tokenizer)
    _require_served(encoding.ids, served=served, position=reply_start)
    tokens = token_span(encoding.offsets, characters)
    return Run(turn.prompt_tokens + turn.reply_tokens, Span(reply_start + tokens.start, reply_start + tokens.end))


def _reply_run(turn: Turn) -> Run:
    _require_plain_reply(turn.reply_text)
    return _continued(turn, turn.reply_tokens)


def _correction_run(correction: Correction, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    served = [message.for_template() for message in turn.messages]
    prompt = tokenizer.render(served, add_generation_prompt=True, template_args=turn.template_args)
    placed = place_content(
        [*served, {"role": "assistant", "content": _plain_reply(correction.reply)}],
        turn.reply_index,
        tokenizer=tokenizer,
        add_generation_prompt=False,
        template_args=turn.template_args,
    )
    return _continued(turn, _corrected_tokens(placed, prompt, tokenizer))


def _continued(turn: Turn, reply: tuple[int, ...]) -> Run:
    sequence = turn.prompt_tokens + reply
    return Run(sequence, Span(len(turn.prompt_tokens), len(sequence)))


def _corrected_tokens(placed: PlacedContent, prompt: str, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Return the corrected reply's text as tokens, then the end of the turn as the template writes it."""
    if not placed.text.startswith(prompt) or placed.content.start != len(prompt):
        raise RefusalError(
            RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
            "The chat template does not write a corrected reply right after the prompt that was served. "
            "Serve with template arguments that make it do so, such as reasoning switched off.",
        )
    encoding = tokenizer.encode(placed.text[len(prompt) :])
    length = len(placed.content)
    text = encoding.ids[: token_span(encoding.offsets, Span(0, length)).end]
    ends = (
        token
        for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)
        if start >= length and token in tokenizer.end_of_turn_ids
    )
    return (*text, next(ends, min(tokenizer.end_of_turn_ids)))


def _plain_reply(reply: str | ReplyMessage) -> str:
    """Return the reply's text where the text is all of it."""
    if isinstance(reply, str):
        return _require_plain_reply(reply)
    if reply.tool_calls:
        raise _tool_call_reply("tool_calls")
    if reply.reasoning_content:
        raise _reasoning_reply("reasoning_content")
    return _require_plain_reply(reply.content or "")


def _require_plain_reply(text: str) -> str:
    if marker := _first_of(TOOL_CALL_MARKERS, text):
        raise _tool_call_reply(marker)
    if marker := _first_of(REASONING_MARKERS, text):
        raise _reasoning_reply(marker)
    if not text.strip():
        raise RefusalError(
            RefusalCode.EMPTY_REPLY,
            f"The reply is {len(text)} characters, none of them visible. Give it a text.",
        )
    return text


def _first_of(markers: tuple[str, ...], text: str) -> str | None:
    return next((marker for marker in markers if marker in text), None)


def _tool_call_reply(found: str) -> RefusalError:
    return RefusalError(
        RefusalCode.TOOL_CALL_REPLY,
        f"The reply holds a tool call ({found}), and only plain text is learned. Signal a reply without one.",
    )


def _reasoning_reply(found: str) -> RefusalError:
    return RefusalError(
        RefusalCode.REASONING_REPLY,
        f"The reply holds reasoning ({found}), and only plain text is learned. Signal a reply without it.",
    )


def _without_end_of_turn(reply: tuple[int, ...], tokenizer: ChatTokenizer) -> tuple[int, ...]:
    return reply[:-1] if reply and reply[-1] in tokenizer.end_of_turn_ids else reply


def _require_served(rendered: tuple[int, ...], *, served: tuple[int, ...], position: int) -> None:
    """Refuse where ``rendered`` is not token by token what was ``served`` from ``position`` on."""
    if rendered == served:
        return
    shorter = min(len(rendered), len(served))
    at = next((i for i in range(shorter) if rendered[i] != served[i]), shorter)
    raise RefusalError(
        RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
        f"Rendered again, the turn has {_token(rendered, at)} at position {position + at} where "
        f"{_token(served, at)} was served. Signal a turn of the template and tokenizer in use.",
        position=position + at,
    )


def _token(tokens: tuple[int, ...], at: int) -> str:
    return f"token {tokens[at]}" if at < len(tokens) else "no token"
