"""Text as tokens come: whole characters, and no part of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.text import ReplyText


def byte_level() -> Tokenizer:
    """A tokenizer whose tokens are mostly single bytes, so that characters are split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the end of the end"], trainer)
    return tokenizer


TOKENIZER = byte_level()


def spoken(text: str, stop: tuple[str, ...]) -> tuple[list[str], ReplyText, int]:
    """Push a text's tokens until it stops; the pieces that came, and how many tokens it took."""
    reply = ReplyText(TOKENIZER, stop)
    pieces: list[str] = []
    tokens = TOKENIZER.encode(text).ids
    for count, token in enumerate(tokens, start=1):
        pieces.append(reply.push(token))
        if reply.stopped:
            return pieces, reply, count
    pieces.append(reply.finish())
    return pieces, reply, len(tokens)


@given(text=st.text(max_size=40))
def test_the_pieces_are_the_text(text: str) -> None:
    pieces, reply, _ = spoken(text, ())
    assert "".join(pieces) == text == reply.text


def test_a_character_split_over_tokens_comes_whole() -> None:
    pieces, _, _ = spoken("a🙂b", ())
    assert [piece for piece in pieces if piece] == ["a", "🙂", "b"]


@given(text=st.text(alphabet="abc", max_size=30), stop=st.text(alphabet="abc", min_size=1, max_size=4))
def test_the_reply_ends_before_its_first_stop_string_and_none_of_it_was_sent(text: str, stop: str) -> None:
    pieces, reply, _ = spoken(text, (stop,))
    assert "".join(pieces) == reply.text == text.split(stop, maxsplit=1)[0]
    assert reply.stopped == (stop in text)
    assert reply.stop == (stop if stop in text else None)


@pytest.mark.parametrize(
    ("stop", "met"), [(("ab", "a"), "a"), (("a", "ab"), "a"), (("b", "ab"), "ab"), (("c", "b"), "b")]
)
def test_the_stop_string_that_ended_the_reply_is_told(stop: tuple[str, ...], met: str) -> None:
    _, reply, _ = spoken("xabc", stop)
    assert (reply.stop, reply.text) == (met, "xabc".split(met, maxsplit=1)[0])


def test_what_might_have_become_a_stop_string_is_sent_at_the_end() -> None:
    pieces, reply, _ = spoken("go on EN", ("END",))
    assert "".join(pieces) == "go on EN"
    assert not reply.stopped


@pytest.mark.parametrize("text", ["abcXYZ", "abXcXYZ"])
def test_the_tokens_of_a_stop_string_are_not_the_replys(text: str) -> None:
    _, reply, count = spoken(text, ("XYZ",))
    kept = TOKENIZER.encode(text).ids[: reply.kept_tokens(count)]
    assert TOKENIZER.decode(kept) == reply.text == text.removesuffix("XYZ")
