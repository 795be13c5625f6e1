"""Grammars: whatever the logits, a reply keeps to what was asked, and ends where it does."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from daemon.text.grammar import CompiledGrammar, GrammarError, Grammars, WrappedJson, function_call
from engine.constraint import ConstraintFailed
from engine.sampling import Sampler, Sampling

PADDING = 21
"""Rows of logits that no token of the tokenizer has; their logits are the largest."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["C", "F", "é"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["city", "days", "units", "next"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def tokenizer(tiny_chat: Path) -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(tiny_chat)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    tool_call = AddedToken("<tool_call>", special=False)  # as Qwen has it, while its closing tag is plain text
    loaded.add_tokens([tool_call, AddedToken("[CALLS]", special=True)])
    return loaded


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerFast) -> Grammars:
    return Grammars(tokenizer, frozenset({0, 2}))


class Writer:
    """Writes replies from random logits, under a grammar."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = len(tokenizer)

    def write(self, grammar: CompiledGrammar, *, seed: int, begun: str = "", liked: str = "") -> str:
        """A whole reply; tokens of `begun` come first, tokens of the characters `liked` come often."""
        bias = tuple((self.tokenizer.get_vocab()[one], 4.0) for one in liked)
        sampler = Sampler(Sampling(temperature=0.7, logit_bias=bias, seed=seed), constraint=grammar.begin)
        generator = torch.Generator().manual_seed(seed)
        forced, tokens = self.tokenizer.backend_tokenizer.encode(begun).ids, list[int]()
        while not sampler.ended and len(tokens) < 1500:
            logits = torch.randn(self.vocabulary + PADDING, generator=generator)
            logits[self.vocabulary :] = 100.0
            if len(tokens) < len(forced):
                logits[forced[len(tokens)]] = 1000.0
            tokens.append(sampler.draw(logits))
        assert sampler.ended, "the reply found no end"
        ends = tokens[-1] in {0, 2}
        return str(self.tokenizer.decode(tokens[:-1] if ends else tokens, skip_special_tokens=False))


@pytest.fixture
def writer(tokenizer: PreTrainedTokenizerFast) -> Writer:
    return Writer(tokenizer)


def assert_is_weather(value: Any) -> None:
    assert isinstance(value, dict)
    assert {"city", "days", "units", "next"} <= value.keys() <= WEATHER["properties"].keys()
    assert isinstance(value["city"], str)
    assert len(value["city"]) <= 12
    assert value["days"] in range(1, 15)
    assert value["units"] in ("C", "F", "é")
    assert value["next"] in (None, {"x": 0}, {"x": 0.25}, {"x": 0.5}, {"x": 0.75}, {"x": 1})
    assert all(isinstance(flag, bool) for flag in value.get("flags", []))


@pytest.mark.parametrize("seed", range(12))
def test_random_logits_under_a_schema_give_json_of_that_schema(
    grammars: Grammars, writer: Writer, seed: int
) -> None:
    assert_is_weather(json.loads(writer.write(grammars.json_schema(WEATHER), seed=seed)))


@pytest.mark.parametrize("seed", range(4))
def test_any_json_object_is_an_object(grammars: Grammars, writer: Writer, seed: int) -> None:
    assert isinstance(json.loads(writer.write(grammars.json_object(), seed=seed, liked='}"]')), dict)


def test_whitespace_in_json_comes_to_an_end(grammars: Grammars, writer: Writer) -> None:
    text = writer.write(grammars.json_schema(WEATHER), seed=1, liked="ĠĊ")
    assert_is_weather(json.loads(text))
    outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    assert not re.search(r"\s{23}", outside)
    assert re.search(r"\s", outside)


def test_a_keyword_that_cannot_be_enforced_is_refused_if_strict_and_else_has_no_effect(
    grammars: Grammars, writer: Writer
) -> None:
    unique: dict[str, Any] = {
        "type": "array",
        "items": {"type": "boolean"},
        "uniqueItems": True,
        "minItems": 3,
        "maxItems": 3,
    }
    call = function_call("f", unique, prefix="", suffix="")
    with pytest.raises(GrammarError, match="uniqueItems"):
        grammars.json_schema(unique)
    with pytest.raises(GrammarError, match="uniqueItems"):
        grammars.calls([call])
    assert len(json.loads(writer.write(grammars.json_schema(unique, strict=False), seed=1))) == 3
    written = json.loads(writer.write(grammars.calls([replace(call, strict=False)]), seed=1))
    assert len(written["arguments"]) == 3


@pytest.mark.parametrize(
    "text",
    [
        'root ::= answer " " ("!" | "?"){2}\nanswer ::= "yes" | "no"',
        '%llguidance {}\nstart: answer " " ("!" | "?"){2}\nanswer: "yes" | "no"',
    ],
    ids=["gbnf", "lark"],
)
def test_a_grammar_may_be_gbnf_or_lark(grammars: Grammars, writer: Writer, text: str) -> None:
    for seed in range(4):
        assert re.fullmatch(r"(yes|no) [!?]{2}", writer.write(grammars.grammar(text), seed=seed))


def test_a_regular_expression_is_matched_as_a_whole(grammars: Grammars, writer: Writer) -> None:
    for seed in range(4):
        assert re.fullmatch(r"a{2,5}/[0-9é]", writer.write(grammars.regex(r"a{2,5}/[0-9é]"), seed=seed))


def test_a_reply_that_may_go_on_ends_with_one_of_the_end_tokens(grammars: Grammars) -> None:
    constraint = grammars.regex("a*").begin()
    logits = torch.zeros(400)
    constraint.mask(logits)
    assert {0, 2} <= set(torch.isfinite(logits).nonzero().flatten().tolist())
    assert not constraint.ended
    constraint.take(2)
    assert constraint.ended


def test_a_call_is_of_one_of_the_functions_with_arguments_of_its_schema(
    grammars: Grammars, writer: Writer
) -> None:
    asked = (("weather", WEATHER), ("öffne", None))
    choices = [function_call(*one, prefix="<tool_call>\n", suffix="\n</tool_call>") for one in asked]
    names = set()
    for seed in range(12):
        text = writer.write(grammars.calls(choices), seed=seed)
        found = re.fullmatch(r"<tool_call>\n(\{.*\})\n</tool_call>", text, re.DOTALL)
        assert found, text
        call = json.loads(found[1])
        names.add(call["name"])
        assert_is_weather(call["arguments"]) if call["name"] == "weather" else call["arguments"] == {}
    assert names == {"weather", "öffne"}


def test_with_a_separator_there_may_be_several_calls(grammars: Grammars, writer: Writer) -> None:
    several = grammars.calls([WrappedJson("f(", {"type": "boolean"}, ")")], separator="\n")
    lengths = set()
    for seed in range(4):
        lines = writer.write(several, seed=seed, liked="Ċ").split("\n")
        assert set(lines) <= {"f(true)", "f(false)"}
        lengths.add(len(lines))
    assert max(lengths) > 2


@pytest.mark.parametrize("tag", ["<tool_call>", "[CALLS]"])
def test_a_special_token_around_a_call_is_the_token(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast, tag: str
) -> None:
    constraint = grammars.calls([WrappedJson(f"{tag}f", {"type": "boolean"}, "")]).begin()
    logits = torch.zeros(len(tokenizer))
    constraint.mask(logits)
    assert torch.isfinite(logits).nonzero().flatten().tolist() == [tokenizer.convert_tokens_to_ids(tag)]


@pytest.mark.parametrize("text", ["<tool_call>", "a[CALLS]", "<|im_end|>"])
def test_text_that_spells_a_special_token_is_written_as_text(
    grammars: Grammars, writer: Writer, text: str
) -> None:
    assert json.loads(writer.write(grammars.json_schema({"const": text}), seed=1)) == text


@pytest.mark.parametrize("tag", ["</think>", "[CALLS]"])
def test_after_reasoning_the_reply_keeps_to_the_grammar(grammars: Grammars, writer: Writer, tag: str) -> None:
    grammar = grammars.regex("(ab){2}", after=tag)
    for gap in ("", "\n\n"):
        begun = f'well {{"a": </thin\n{tag}{gap}'
        text = writer.write(grammar, seed=3, begun=begun)
        assert re.fullmatch(r"[ \n]{0,4}(ab){2}", text.removeprefix(begun))


@pytest.mark.parametrize(
    ("compile_", "says"),
    [
        (lambda own: own.json_schema({"type": "objekt"}), "objekt"),
        (lambda own: own.json_schema({"type": "string", "minLength": 5, "maxLength": 2}), "Unsatisfiable"),
        (lambda own: own.json_schema({"$ref": "#/nowhere"}), "nowhere"),
        (lambda own: own.json_schema({"x-guidance": {"bogus": 1}}), "bogus"),
        (lambda own: own.grammar("hello"), "Expected ::="),
        (lambda own: own.grammar("root ::= nowhere"), "nowhere"),
        (lambda own: own.grammar("start: nowhere"), "nowhere"),
        (lambda own: own.regex("(a"), "unclosed group"),
        (lambda own: own.calls([WrappedJson("f", {"type": "objekt"}, "")]), "objekt"),
        (lambda own: own.grammar("start: @body"), "grammar"),
        (lambda own: own.regex("(a", after="</think>"), "unclosed group"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_llguidances_words(
    grammars: Grammars, compile_: Any, says: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(says)):
        compile_(grammars)


def test_a_token_that_may_not_come_fails_the_constraint(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    constraint = grammars.regex("a").begin()
    with pytest.raises(ConstraintFailed, match="grammar"):
        constraint.take(tokenizer.get_vocab()["b"])


def test_compiling_on_several_threads_gives_grammars_that_know_nothing_of_each_other(
    tokenizer: PreTrainedTokenizerFast, writer: Writer
) -> None:
    fresh = Grammars(tokenizer, frozenset({2}))
    with ThreadPoolExecutor(4) as pool:
        compiled = list(pool.map(lambda n: fresh.regex(f"x{n % 3}"), range(12)))
    assert [writer.write(grammar, seed=n) for n, grammar in enumerate(compiled)] == [
        f"x{n % 3}" for n in range(12)
    ]
    assert fresh.regex("x1") is fresh.regex("x1"), "a grammar is compiled once"
