"""A choice read from its turn's events, without a lane."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from daemon.dialects.choice import ChoiceReader
from daemon.text.reply_format import Content, ReplyFormat
from daemon.text.token_text import TokenTexts
from engine.orders import TokenServed, TurnEnded
from engine.text import ReplyText

END = 2


@pytest.mark.parametrize(
    ("said", "stop", "ends", "text", "stopped_by"),
    [
        ("the harbour", ("x", " ha"), False, "the", " ha"),
        ("the harbour", ("arb", " harb"), False, "the", " harb"),
        ("the harbour", ("x",), True, "the harbour", None),
        ("the harbour", (), True, "the harbour", None),
        ("the ü", ("ü",), False, "the ", "ü"),
    ],
)
def test_a_choice_knows_the_stop_string_that_ended_it(
    tiny_chat: Path, said: str, stop: tuple[str, ...], ends: bool, text: str, stopped_by: str | None
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_chat / "tokenizer.json"))
    reply, parser = ReplyText(tokenizer, stop), ReplyFormat().parser(prompt="", tools=frozenset(), new_id=str)
    reader = ChoiceReader(0, parser, TokenTexts(tokenizer), end_tokens=frozenset({END}))
    served = list(tokenizer.encode(said, add_special_tokens=False).ids)
    for token in served:
        reader.take(TokenServed("turn", token, reply.push(token)))
        if reply.stopped:
            break
    if ends:
        reader.take(TokenServed("turn", END, ""))
    rest = "" if reply.stopped else reply.finish()
    ended = TurnEnded("turn", "stop", rest, reply.text, tuple(served), stop=reply.stop)
    reader.take(ended)
    choice = reader.choice(ended, with_logprobs=False)
    assert choice.parts == (Content(text),)
    assert (choice.finish, choice.stopped_by, choice.logprobs) == ("stop", stopped_by, None)
