"""Runs: the tokens that a signal asks to have learned, in the sequence they stand in.

* What is learned as perceived or as said was served so: token by token, or it is refused with the first
  position that differs. Only a correction puts tokens of its own after what was served.
* A reply is learned as its text then the end of the turn.
* A reply whose substance is elsewhere, in tool calls or in reasoning, is refused as a whole.
"""

from typing import assert_never

from signals.corrections import correction_run
from signals.labelling import labels_run
from signals.records import Action, Correction, Engram, Labels, Turn
from signals.replies import require_plain
from signals.served import Run, place_in_prompt, prompt_offsets, require_served
from signals.spans import Span, locate, token_span
from signals.tokens import ChatTokenizer

LessonSignal = Engram | Correction | Labels | Action
"""The signals that make a lesson. A relevance changes its weight; a verdict, whether there is one."""


def find_run(signal: LessonSignal, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    """Find the tokens that ``signal`` asks to have learned.

    Raises `RefusalError` where they are not there, were not served so, or are no plain reply, and
    `RenderError` where the chat template refuses the messages.
    """
    match signal:
        case Engram():
            return _engram_run(signal, turn, tokenizer)
        case Correction():
            return correction_run(signal, turn, tokenizer)
        case Labels():
            return labels_run(signal, turn, tokenizer)
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
    placed = place_in_prompt(turn, message, tokenizer)
    offsets = prompt_offsets(placed.text, turn, tokenizer)
    return Run(turn.prompt_tokens, token_span(offsets, placed.within(characters)))


def _reply_span_run(turn: Turn, characters: Span, tokenizer: ChatTokenizer) -> Run:
    reply_start = len(turn.prompt_tokens)
    encoding = tokenizer.encode(turn.reply_text)
    served = _without_end_of_turn(turn.reply_tokens, tokenizer)
    require_served(encoding.ids, served=served, position=reply_start)
    tokens = token_span(encoding.offsets, characters)
    return Run(turn.prompt_tokens + turn.reply_tokens, Span(reply_start + tokens.start, reply_start + tokens.end))


def _reply_run(turn: Turn) -> Run:
    require_plain(turn.reply_text)
    sequence = turn.prompt_tokens + turn.reply_tokens
    return Run(sequence, Span(len(turn.prompt_tokens), len(sequence)))


def _without_end_of_turn(reply: tuple[int, ...], tokenizer: ChatTokenizer) -> tuple[int, ...]:
    return reply[:-1] if reply and reply[-1] in tokenizer.end_of_turn_ids else reply
