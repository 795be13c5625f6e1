"""A reply taken apart: every way of cutting it into pieces gives the parts of the whole."""

from collections.abc import Callable, Iterable
from itertools import combinations, count, pairwise

import pytest

from daemon.dialects.answer import joined
from daemon.text.reply_format import THINK, TOOL_CALL, Content, Part, Reasoning, ReplyFormat, ToolCall
from daemon.text.tool_calls import begins_bare_call, read_calls

PLAIN = ReplyFormat()
QWEN = ReplyFormat(reasoning=THINK, calls=TOOL_CALL)
HERMES = ReplyFormat(calls=TOOL_CALL)
TOOLS = frozenset({"weather", "time"})
WEATHER = '{"name": "weather", "arguments": {"city": "Vellmar"}}'
TIME = '{"name": "time", "arguments": {}}'
CALL = ToolCall("call-1", "weather", '{"city": "Vellmar"}')


def ids() -> Callable[[], str]:
    counter = count(1)
    return lambda: f"call-{next(counter)}"


def parts_of(
    format_: ReplyFormat, pieces: Iterable[str], *, tools: frozenset[str] = TOOLS, prompt: str = ""
) -> tuple[Part, ...]:
    parser = format_.parser(prompt=prompt, tools=tools, new_id=ids())
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.finish()])


CASES: list[tuple[ReplyFormat, str, str, list[Part]]] = [
    (PLAIN, "", "hello there", [Content("hello there")]),
    (PLAIN, "", "", []),
    (PLAIN, "", " \n ", [Content(" \n ")]),
    (QWEN, "", " \n ", [Content(" \n ")]),
    (QWEN, "", "\n hello", [Content("\n hello")]),
    (QWEN, "", "hello \n", [Content("hello \n")]),
    (QWEN, "", "a < b <tool> c <", [Content("a < b <tool> c <")]),
    (QWEN, "", "<think>\nhm\n\nso\n</think>\n\nyes\n", [Reasoning("hm\n\nso"), Content("yes\n")]),
    (QWEN, "", "<think>\n\n</think>\n\nyes", [Content("yes")]),
    (QWEN, "", "<think>cut off </thin", [Reasoning("cut off </thin")]),
    (QWEN, "", "<thin", [Content("<thin")]),
    (QWEN, "", "say <think> twice</think>", [Content("say <think> twice</think>")]),
    (QWEN, "<think>\n", "hm\n</think>\nyes", [Reasoning("hm"), Content("yes")]),
    (QWEN, "<think>\n\n</think>\n\n", "yes </think>", [Content("yes </think>")]),
    (QWEN, "<think>", f"hm</think>\n<tool_call>\n{WEATHER}\n</tool_call>", [Reasoning("hm"), CALL]),
    (QWEN, "<think>", "hm</think> \n", [Reasoning("hm")]),
    (HERMES, "", f"<tool_call>\n{WEATHER}\n</tool_call>\n", [CALL]),
    (HERMES, "", f"wait\n<tool_call>{WEATHER}</tool_call>", [Content("wait"), CALL]),
    (
        HERMES,
        "",
        f"<tool_call>{WEATHER}</tool_call>\n<tool_call>{TIME}</tool_call> done",
        [CALL, ToolCall("call-2", "time", "{}"), Content(" done")],
    ),
    (HERMES, "", f"<tool_call>[{WEATHER}, {TIME}]</tool_call>", [CALL, ToolCall("call-2", "time", "{}")]),
    (HERMES, "", f"<tool_call>{WEATHER}", [CALL]),
    (HERMES, "", "<tool_call>{oops}</tool_call> x", [Content("<tool_call>{oops}</tool_call> x")]),
    (HERMES, "", "a \n<tool_call>[]</tool_call>", [Content("a \n<tool_call>[]</tool_call>")]),
    (
        HERMES,
        "",
        f"<tool_call>no <tool_call>{WEATHER}</tool_call>",
        [Content("<tool_call>no"), CALL],
    ),
    (HERMES, "", '<tool_call>{"name": "wea', [Content('<tool_call>{"name": "wea')]),
    (
        HERMES,
        "",
        '<tool_call>{"name": "time", "arguments": {"a": "</tool_call>\\""}}</tool_call>',
        [ToolCall("call-1", "time", '{"a": "</tool_call>\\""}')],
    ),
    (PLAIN, "", f" {WEATHER}\n", [CALL]),
    (PLAIN, "", '{"name": "weather", "parameters": {"city": "Vellmar"}}', [CALL]),
    (PLAIN, "", '{"name": "nothing", "arguments": {}}', [Content('{"name": "nothing", "arguments": {}}')]),
    (PLAIN, "", '{"name": "weather"}', [Content('{"name": "weather"}')]),
    (PLAIN, "", '{"city": "Vellmar"} it is', [Content('{"city": "Vellmar"} it is')]),
    (PLAIN, "", f"{WEATHER} it is", [Content(f"{WEATHER} it is")]),
    (HERMES, "", WEATHER, [CALL]),
    (HERMES, "", f'{{"id": 1}} <tool_call>{WEATHER}</tool_call>', [Content('{"id": 1}'), CALL]),
]


@pytest.mark.parametrize(("format_", "prompt", "text", "parts"), CASES)
def test_a_reply_has_these_parts(format_: ReplyFormat, prompt: str, text: str, parts: list[Part]) -> None:
    assert list(parts_of(format_, [text], prompt=prompt)) == parts


@pytest.mark.parametrize(("format_", "prompt", "text", "parts"), CASES)
def test_however_it_is_cut_the_parts_are_the_same(
    format_: ReplyFormat, prompt: str, text: str, parts: list[Part]
) -> None:
    cuts = [(at,) for at in range(len(text))] + list(combinations(range(len(text)), 2))
    for cut in [tuple(range(len(text))), *cuts]:
        borders = (0, *cut, len(text))
        pieces = [text[start:end] for start, end in pairwise(borders)]
        assert list(parts_of(format_, pieces, prompt=prompt)) == parts, pieces


@pytest.mark.parametrize(("format_", "prompt", "text", "parts"), CASES)
def test_no_part_is_taken_back(format_: ReplyFormat, prompt: str, text: str, parts: list[Part]) -> None:
    """What is given out after any beginning is a beginning of the whole: half a tag is never given out."""
    whole = _spelled(parts)
    for end in range(len(text)):
        parser = format_.parser(prompt=prompt, tools=TOOLS, new_id=ids())
        assert whole.startswith(_spelled(joined(parser.push(text[:end]))))


def _spelled(parts: Iterable[Part]) -> str:
    spelled = ""
    for part in parts:
        match part:
            case Content(text):
                spelled += f"content:{text}" if not spelled.startswith("content") else text
            case Reasoning(text):
                spelled += f"reasoning:{text}"
            case ToolCall(id_, name, arguments):
                spelled += f"call:{id_}{name}{arguments}"
    return spelled


def test_without_tools_a_call_is_text_and_comes_at_once() -> None:
    parser = HERMES.parser(prompt="", tools=frozenset(), new_id=ids())
    assert parser.push("<tool_call>{") == [Content("<tool_call>{")]
    assert parser.push(" \n") == [Content(" \n")]


def test_text_is_given_out_as_soon_as_it_can_be_no_tag() -> None:
    parser = QWEN.parser(prompt="", tools=TOOLS, new_id=ids())
    assert parser.push("hel") == [Content("hel")]
    assert parser.push("lo <") == [Content("lo")]
    assert parser.push("b") == [Content(" <b")]
    assert parser.push("<tool_call>{") == []


def test_a_json_answer_that_is_no_call_does_not_wait_for_its_end() -> None:
    parser = PLAIN.parser(prompt="", tools=TOOLS, new_id=ids())
    assert parser.push('{"cit') == []
    assert parser.push('y": ') == [Content('{"city": ')]


def test_the_format_is_found_in_the_template() -> None:
    assert ReplyFormat.of_template(None) == PLAIN
    assert ReplyFormat.of_template("{{ messages }}") == PLAIN
    assert ReplyFormat.of_template("… <tool_call> …") == HERMES
    assert ReplyFormat.of_template("… content.split('</think>') … <tool_call> …") == QWEN
    llama = 'Respond in the format {"name": function name, "parameters": dictionary of argument name}.'
    assert ReplyFormat.of_template(llama).arguments_key == "parameters"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (WEATHER, [("weather", '{"city": "Vellmar"}')]),
        ('{"name": "time"}', [("time", "{}")]),
        ('{"name": "time", "arguments": "{\\"zone\\": 1}"}', [("time", '{"zone": 1}')]),
        ('{"type": "function", "function": {"name": "time", "arguments": {}}}', [("time", "{}")]),
        ('{"name": "time", "arguments": {"a": "\\ud800"}}', [("time", '{"a": "\\ud800"}')]),
        ('{"name": "time", "arguments": {"a": "ü"}}', [("time", '{"a": "ü"}')]),
        ('{"name": "\\ud800", "arguments": {}}', []),
        ('{"name": "time", "arguments": [1]}', []),
        ('{"name": "time", "arguments": {"a": NaN}}', []),
        ('{"name": "", "arguments": {}}', []),
        (f"[{WEATHER}, 3]", []),
        ("[" * 100_000, []),
        ("3", []),
    ],
)
def test_calls_are_read_as_models_write_them(text: str, calls: list[tuple[str, str]]) -> None:
    assert [(call.name, call.arguments) for call in read_calls(text)] == calls


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        (" {", True),
        ('{"na', True),
        ('{ "name"', True),
        ('{"type": 1, "city', True),
        ("{1", False),
        ('{"city"', False),
        ("x{", False),
    ],
)
def test_a_bare_call_is_told_by_its_first_key(text: str, may_be: bool) -> None:
    assert begins_bare_call(text) is may_be
