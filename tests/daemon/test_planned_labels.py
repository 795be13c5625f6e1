"""Whatever is said and signalled: a planned label names a token of what was asked for, or there is a refusal.

The reference knows where a template writes each message, and says which tokens touch what was asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from daemon.text.chat_template import HuggingFaceChat
from signals.planning import plan
from signals.plans import LessonPlan
from signals.policy import AgentPolicy
from signals.records import Action, Correction, Engram, Label, Labels, Message, Origin, ReplyMessage, Turn
from signals.refusals import Refusal
from signals.runs import LessonSignal
from signals.tokens import ChatTokenizer
from tests.daemon.tiny_chat import TEMPLATE, TOOLS_TEMPLATE, tiny_tokenizer
from tests.signals.fake_tokenizer import FakeTokenizer, trimming_chatml

TOOLS = [{"type": "function", "function": {"name": "ring", "parameters": {"type": "object"}}}]
SYSTEM_TEMPLATE = "{{ '<|im_start|>system\nYou are helpful — עזור. 🧭<|im_end|>\n' }}" + TEMPLATE
"""Writes a system text of its own before the conversation."""

PIECES = (
    *(
        "a",
        "B",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "é",
        "e\u0301",
        "\u0301",
        "ß",
        "字",
        "שלום",
        "مرحبا",
        "\u202e",
        "\u200d",
    ),
    *(
        "😀",
        "👩\u200d🚀",
        "🇫🇷",
        "\ufe0f",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_",
        "<tool_call>",
        "{{ x }}",
    ),
    *("system", "assistant\n", "ridealongmarker0", "\x00", "\u00a0", "hello hello"),
)
TEXT = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=8).map("".join)


@dataclass(frozen=True)
class Case:
    """A tokenizer, its template's arguments, and what the template writes before and of a message."""

    tokenizer: ChatTokenizer
    args: Mapping[str, Any]
    opening: str = ""
    written: Callable[[str], str] = str


def _chat(template: str, args: Mapping[str, Any] | None = None) -> Case:
    tokenizer = tiny_tokenizer(template)
    case = Case(HuggingFaceChat(tokenizer, frozenset({2})), args or {})
    one = [{"role": "user", "content": "x"}]
    written = case.tokenizer.render(one, add_generation_prompt=False, template_args=case.args)
    return replace(case, opening=written[: written.rindex("<|im_start|>user")])


CASES = {
    "fake": Case(FakeTokenizer(), {}),
    "trimming": Case(FakeTokenizer(trimming_chatml), {}, written=str.strip),
    "byte-level": _chat(TEMPLATE),
    "system text": _chat(SYSTEM_TEMPLATE),
    "tools": _chat(TOOLS_TEMPLATE, {"tools": TOOLS}),
    "reasoning": _chat(TOOLS_TEMPLATE, {"tools": TOOLS, "thinking": True}),
}


@st.composite
def turns(draw: st.DrawFn, case: Case) -> Turn:
    contents = draw(st.lists(TEXT, min_size=1, max_size=4))
    first = draw(st.sampled_from(["system", "user"]))
    roles = [first, *("user" if i % 2 else "assistant" for i in range(1, len(contents)))]
    messages = tuple(Message(role=role, content=content) for role, content in zip(roles, contents, strict=True))
    prompt = case.tokenizer.render(
        [message.for_template() for message in messages], add_generation_prompt=True, template_args=case.args
    )
    reply, ended = draw(TEXT), draw(st.booleans())
    end = (min(case.tokenizer.end_of_turn_ids),) if ended else ()
    return Turn(
        id="t",
        agent="ada",
        messages=messages,
        template_args=dict(case.args),
        prompt_tokens=case.tokenizer.encode(prompt).ids,
        reply_tokens=case.tokenizer.encode(reply).ids + end,
        reply_text=reply,
        adapter="base",
        context_tokens=4096,
    )


@st.composite
def pointers(draw: st.DrawFn, turn: Turn, *, messages: int) -> tuple[int, int, int]:
    """Characters [start, end) of a message that has some."""
    index = draw(st.integers(0, messages - 1))
    length = max(1, len(turn.texts[index]))
    start = draw(st.integers(0, length - 1))
    return index, start, draw(st.integers(start + 1, length))


def planned(signal: LessonSignal, turn: Turn, case: Case) -> LessonPlan | Refusal:
    return plan(signal, turn, policy=AgentPolicy(learn=True), tokenizer=case.tokenizer, context_tokens=4096)


def labelled(made: LessonPlan) -> dict[int, int]:
    """What is learned: the token at each position."""
    targets = enumerate(made.targets, start=made.prefix_tokens + 1)
    return {position: target for position, target in targets if target is not None}


def asked_positions(turn: Turn, case: Case, index: int, start: int, end: int) -> set[int]:
    """The positions of the tokens that touch characters [start, end) of a message, by the reference."""
    if index == turn.reply_index:
        offsets, shift, first = case.tokenizer.encode(turn.reply_text).offsets, 0, len(turn.prompt_tokens)
        kept = (start, end)
    else:
        text, shift, dropped = _placed(turn, case, index)
        offsets, first = case.tokenizer.encode(text).offsets, 0
        length = len(case.written(turn.texts[index]))
        kept = (min(max(start - dropped, 0), length), min(max(end - dropped, 0), length))
    touching = [i for i, (a, b) in enumerate(offsets) if max(a, kept[0] + shift) < min(b, kept[1] + shift)]
    return {first + i for i in range(touching[0], touching[-1] + 1)} - {0} if touching else set()


def _placed(turn: Turn, case: Case, index: int) -> tuple[str, int, int]:
    """The prompt's text, where the message's content begins in it, and how much of it was trimmed before."""
    before = [f"<|im_start|>{m.role}\n{case.written(m.content)}<|im_end|>\n" for m in turn.messages[:index]]
    at = len(case.opening) + len("".join(before)) + len(f"<|im_start|>{turn.messages[index].role}\n")
    text = case.tokenizer.render(
        [message.for_template() for message in turn.messages], add_generation_prompt=True, template_args=case.args
    )
    content = turn.texts[index]
    assert text[at:].startswith(case.written(content))
    return text, at, content.find(case.written(content))


def check_served(made: LessonPlan, turn: Turn) -> None:
    served = turn.prompt_tokens + turn.reply_tokens
    assert made.prefix + made.tokens == served[: made.last_position + 1]
    assert all(served[position] == token for position, token in labelled(made).items())


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_an_engram_labels_the_tokens_of_its_span_and_no_others(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    turn = data.draw(turns(case))
    index, start, end = data.draw(pointers(turn, messages=len(turn.texts)))
    by_quote = data.draw(st.booleans()) and turn.texts[index][start:end]
    pointer: dict[str, Any] = {"quote": by_quote} if by_quote else {"start": start, "end": end}
    signal = Engram(id="e", agent="ada", turn="t", origin=Origin.HUMAN, message=index, **pointer)
    made = planned(signal, turn, case)
    if isinstance(made, LessonPlan):
        check_served(made, turn)
        assert set(labelled(made)) == asked_positions(turn, case, index, start, end)
    elif turn.texts[index][start:end].strip() and not by_quote and index < turn.reply_index:
        assert not asked_positions(turn, case, index, start, end), made


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_labels_label_the_tokens_of_their_spans_and_no_others(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    turn = data.draw(turns(case))
    spans = data.draw(st.lists(pointers(turn, messages=len(turn.messages)), min_size=1, max_size=3))
    labels = tuple(Label(message=index, start=start, end=end) for index, start, end in spans)
    made = planned(Labels(id="l", agent="ada", turn="t", labels=labels), turn, case)
    if isinstance(made, LessonPlan):
        check_served(made, turn)
        assert set(labelled(made)) == set().union(*(asked_positions(turn, case, *span) for span in spans))


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_reply_is_labelled_whole_and_nothing_else_is(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    turn = data.draw(turns(case))
    made = planned(Action(id="a", agent="ada", turn="t"), turn, case)
    if isinstance(made, LessonPlan):
        check_served(made, turn)
        first = len(turn.prompt_tokens)
        assert set(labelled(made)) == set(range(first, first + len(turn.reply_tokens)))


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_correction_labels_its_own_text_and_the_end_of_the_turn(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    turn, text = data.draw(turns(case)), data.draw(TEXT)
    reply = data.draw(st.sampled_from([text, ReplyMessage(content=text)]))
    made = planned(Correction(id="c", agent="ada", turn="t", reply=reply), turn, case)
    if isinstance(made, LessonPlan):
        assert made.prefix + made.tokens[:1] == turn.prompt_tokens
        tokens = tuple(labelled(made).values())
        assert tokens[-1] in case.tokenizer.end_of_turn_ids
        assert tokens[:-1] == case.tokenizer.encode(case.written(text)).ids


def _bundled(cache: Path) -> Sequence[Path]:
    return sorted(cache.glob("*/tokenizer.json")) if cache.is_dir() else ()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_bundled_tokenizer_labels_the_tokens_of_a_span_too(model_cache: Path, data: st.DataObject) -> None:
    if not _bundled(model_cache):
        pytest.skip("the bundled model has not been converted here")
    case = _bundled_case(_bundled(model_cache)[0].parent)
    turn = data.draw(turns(case))
    index, start, end = data.draw(pointers(turn, messages=len(turn.messages)))
    signal = Engram(id="e", agent="ada", turn="t", origin=Origin.HUMAN, message=index, start=start, end=end)
    made = planned(signal, turn, case)
    if isinstance(made, LessonPlan):
        check_served(made, turn)
        spoken = turn.texts[index][start:end]
        chat = case.tokenizer
        assert isinstance(chat, HuggingFaceChat)
        # It has no token for some bytes, and drops them.
        assume(chat.decode(list(chat.encode(spoken).ids)) == spoken)
        assert made.prefix_tokens == 0 or spoken in chat.decode(list(labelled(made).values()))


_LOADED: dict[Path, Case] = {}


def _bundled_case(directory: Path) -> Case:
    if directory not in _LOADED:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        end = tokenizer.eos_token_id
        assert isinstance(end, int)
        _LOADED[directory] = Case(HuggingFaceChat(tokenizer, frozenset({end})), {})
    return _LOADED[directory]
