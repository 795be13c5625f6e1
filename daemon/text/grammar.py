"""What a reply may be made to keep to: JSON of a schema, a grammar, a regular expression, a call of a function.

- A grammar is compiled by llguidance before its turn is submitted; one that cannot be is refused then.
- Compiling is safe on any thread, and remembered: the same grammar again is a look-up.
- Each turn goes its own way through a compiled grammar, from the beginning.
- What the tokenizer has no token for, such as the padding of the logits' rows, is never allowed.
- `after` names the tag that closes reasoning, for a prompt that has opened it: whatever comes up to that tag is
  free, and what comes after it keeps to the grammar.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from daemon.http.errors import BadRequest
from engine.constraint import Constraint, ConstraintFailed
from store.columns import JsonValue

REMEMBERED_GRAMMARS = 64
"""How many compiled grammars are kept: an agent's tools and formats are the same from turn to turn."""

JSON_WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
"""Between JSON's tokens, llama.cpp's bound: without one a weak model may indent until its tokens run out."""

MOST_GAP = 4
"""Characters of whitespace between reasoning and what follows it: templates write two line ends."""

_BITS = 1 << torch.arange(8, dtype=torch.uint8)


class GrammarError(BadRequest):
    """The schema or grammar cannot be compiled; llguidance says why."""


@dataclass(frozen=True, slots=True)
class WrappedJson:
    """Text, then JSON of a schema, then text: one way a call may be written.

    Special tokens in the text are meant as the tokens, as in a chat template. A keyword of the schema that cannot
    be enforced is refused if `strict`, else has no effect.
    """

    before: str
    schema: Mapping[str, JsonValue]
    after: str
    strict: bool = True


class CompiledGrammar:
    """A grammar at its beginning, for one tokenizer."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def begin(self) -> Constraint:
        """A turn's way through the grammar: what `TurnOrder.constraint` asks for."""
        return _GrammarConstraint(self._matcher.deep_copy(), self._vocabulary)


class Grammars:
    """Compiles grammars for a lane's tokenizer. Every method may take a while, and may run on any thread.

    `end_tokens` are the token ids that end a reply; they are allowed where a grammar may end.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = sorted(end_tokens)
        self._compile = lru_cache(maxsize=REMEMBERED_GRAMMARS)(self._compiled)

    def json_schema(
        self, schema: Mapping[str, JsonValue], *, strict: bool = True, after: str | None = None
    ) -> CompiledGrammar:
        """JSON of that schema. A keyword that cannot be enforced is refused if `strict`, else has no effect.

        Raises:
            GrammarError: it is not a schema, nothing satisfies it, or it uses what cannot be enforced.
        """
        return self._compile(f"%llguidance {{}}\nstart: {_json(schema, lenient=not strict)}\n", after)

    def json_object(self, *, after: str | None = None) -> CompiledGrammar:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, after=after)

    def grammar(self, text: str, *, after: str | None = None) -> CompiledGrammar:
        """Text of a GBNF grammar (with a `root`) or of llguidance's Lark dialect (with a `start`).

        Raises:
            GrammarError: it is neither.
        """
        try:
            lark = grammar_from("gbnf", text)
        except ValueError as error:
            raise GrammarError(f"the grammar cannot be used: {error}") from error
        return self._compile(lark, after)

    def regex(self, pattern: str, *, after: str | None = None) -> CompiledGrammar:
        """Text that matches the pattern as a whole; the syntax is that of Rust's regex crate.

        Raises:
            GrammarError: it is no such pattern.
        """
        lark = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
        return self._compile(lark, after)

    def calls(
        self, choices: Sequence[WrappedJson], *, separator: str | None = None, after: str | None = None
    ) -> CompiledGrammar:
        """One of the choices; with a separator one or more, each after the first behind a separator.

        Raises:
            GrammarError: a schema cannot be enforced.
        """
        assert choices, "there is nothing to choose from"
        names = [f"call_{index}" for index in range(len(choices))]
        more = "" if separator is None else f" ({self._text(separator)} call)*"
        rules = [f"start: call{more}", f"call: {' | '.join(names)}"]
        for name, choice in zip(names, choices, strict=True):
            inner = _json(choice.schema, lenient=not choice.strict)
            rules.append(f"{name}: {self._text(choice.before)} {inner} {self._text(choice.after)}")
        return self._compile("%llguidance {}\n" + "\n".join(rules) + "\n", after)

    @cached_property
    def _bridge(self) -> LLTokenizer:
        """The tokenizer as llguidance sees it; about a second for a large vocabulary."""
        return from_tokenizer(self._tokenizer, eos_token=self._end_tokens)

    @cached_property
    def _special(self) -> dict[str, int]:
        """The tokens that are no text to llguidance: those marked special, and added ones in angle brackets."""
        added = self._tokenizer.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: index for index, token in added.items() if self._bridge.is_special_token(index)}

    def _compiled(self, lark: str, after: str | None) -> CompiledGrammar:
        grammars = [{"lark_grammar": self._frame(after)}, {"name": "body", "lark_grammar": lark}]
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._bridge, json.dumps({"grammars": grammars}), log_level=0, limits=limits)
        matcher.compute_bitmask()  # some errors show with the first token only, which turns then need not work out
        if matcher.is_error():
            raise GrammarError(f"the schema or grammar cannot be used: {matcher.get_error().strip()}")
        return CompiledGrammar(matcher, self._bridge.vocab_size)

    def _frame(self, after: str | None) -> str:
        """The grammar by itself; or free text up to and including the tag, some whitespace, and the grammar.

        Text that can come in one way only is not forced into the tokenizer's own pieces: where these are special
        tokens, the matcher would allow what it then refuses.
        """
        options = '%llguidance {"no_forcing": true}'
        if after is None:
            return f"{options}\nstart: @body\n"
        free = f"free{'' if after in self._special else '[lazy]'}: /(.|\\n)*/ {self._text(after)}"
        return f"{options}\nstart: free GAP? @body\n{free}\nGAP: /[ \\n]{{1,{MOST_GAP}}}/\n"

    def _text(self, text: str) -> str:
        """Literal text as Lark, special tokens by their ids."""
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        pieces = re.split(f"({'|'.join(names)})", text) if names else [text]
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        )


def function_call(
    name: str,
    parameters: Mapping[str, JsonValue] | None,
    *,
    prefix: str,
    suffix: str,
    name_key: str = "name",
    arguments_key: str = "arguments",
    strict: bool = True,
) -> WrappedJson:
    """The call of a function as most chat templates write it: prefix, {"name": …, "arguments": {…}}, suffix.

    Without parameters the function has none.
    """
    nothing: Mapping[str, JsonValue] = {"type": "object", "properties": {}, "additionalProperties": False}
    quoted = [json.dumps(text, ensure_ascii=False) for text in (name_key, name, arguments_key)]
    opening = "{{{}: {}, {}: ".format(*quoted)
    return WrappedJson(prefix + opening, nothing if parameters is None else parameters, "}" + suffix, strict)


class _GrammarConstraint:
    """One reply's way through a grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._words = torch.zeros(-(-vocabulary // 32), dtype=torch.int32)

    @property
    def ended(self) -> bool:
        """May nothing follow but the reply's end?"""
        return self._matcher.is_stopped()

    def mask(self, logits: Tensor) -> None:
        """Set to −inf, in place, the logits [V] of the tokens that may not come next."""
        self._matcher.unsafe_compute_mask_ptr(self._words.data_ptr(), self._words.nbytes)
        self._check()
        allowed = self._words.view(torch.uint8)[:, None] & _BITS  # [V / 8, 8], little-endian
        known = logits[: self._vocabulary]
        known.masked_fill_(allowed.flatten()[: len(known)] == 0, -torch.inf)
        logits[self._vocabulary :] = -torch.inf

    def take(self, token: int) -> None:
        """Be told the token that was drawn."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the grammar cannot be followed: {self._matcher.get_error().strip()}")


def _json(schema: Mapping[str, JsonValue], *, lenient: bool) -> str:
    """JSON of a schema as Lark. The schema's own `x-guidance` has the last word on how it is written."""
    own = schema.get("x-guidance")
    options = {"whitespace_pattern": JSON_WHITESPACE, "lenient": lenient, **(own if isinstance(own, dict) else {})}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
