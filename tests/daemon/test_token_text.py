"""What single tokens say, in byte-level vocabularies and in those with byte tokens."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from daemon.text.token_text import TokenTexts


def test_a_byte_level_token_is_its_bytes(tiny_chat: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_chat / "tokenizer.json"))
    texts = TokenTexts(tokenizer)
    said = "the harbour — ü\n\x00 🐝"
    tokens = tokenizer.encode(said, add_special_tokens=False).ids
    assert b"".join(texts.bytes_of(token) for token in tokens) == said.encode()
    assert any(texts.text_of(token) == "�" for token in tokens)


def test_an_added_token_is_its_text(tiny_chat: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_chat / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    assert TokenTexts(tokenizer).text_of(end) == "<|im_end|>"


def test_a_byte_token_is_its_byte_and_a_word_begins_with_a_space() -> None:
    vocabulary = {"<unk>": 0, "<0xC3>": 1, "▁bee": 2, "s": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    texts = TokenTexts(tokenizer)
    assert [texts.bytes_of(token) for token in (1, 2, 3)] == [b"\xc3", b" bee", b"s"]
    assert texts.bytes_of(99) == b""
