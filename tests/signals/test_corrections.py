from collections.abc import Mapping
from typing import Any

import pytest

from signals.policy import AgentPolicy
from signals.records import Correction, Message, ReplyMessage, Turn
from signals.refusals import RefusalCode
from tests.signals.fake_tokenizer import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    FakeTokenizer,
    Messages,
    chatml,
    serve,
    trimming_chatml,
)
from tests.signals.test_planning import lesson, refusal, sequence

CALLED = ReplyMessage(tool_calls=({"name": "ring"},))


def calling(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    """ChatML that writes tool calls after the content."""
    told = [{**m, "content": f"{m['content']}{_calls(m)}"} for m in messages]
    return chatml(told, add_generation_prompt, args)


def _calls(message: Mapping[str, Any]) -> str:
    return "".join(f"<tool_call>{call['name']}</tool_call>" for call in message.get("tool_calls", ()))


def correction(**given: Any) -> Correction:
    return Correction(**{"id": "s1", "agent": "ada", "turn": "turn-1", **given})


def messages(*contents: str) -> tuple[Message, ...]:
    return tuple(Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(contents))


def test_a_conversation_as_it_was_served_is_the_lesson_of_its_reply_alone() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", "hello", "who?")
    told = lesson(correction(reply="ada", messages=messages("hi", "hello", "who?")), turn, tokenizer)
    assert told == lesson(correction(reply="ada"), turn, tokenizer)
    assert tokenizer.decode(told.targets) == "ada" + IM_END


def test_a_reply_in_the_middle_of_what_was_served_is_learned_after_what_precedes_it() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", "hello", "who?")
    made = lesson(correction(reply="good day", messages=messages("hi")), turn, tokenizer)
    assert tokenizer.decode(sequence(made)) == f"{IM_START}user\nhi{IM_END}\n{IM_START}assistant\ngood day{IM_END}"
    assert made.prefix == turn.prompt_tokens[: made.prefix_tokens]


def test_a_conversation_that_was_not_served_is_refused_where_it_differs_with_both_tokens() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi there")
    given = messages("hi you")
    refused = refusal(correction(reply="ada", messages=given), turn, tokenizer)
    assert (refused.code, refused.position) == (RefusalCode.UNSERVED_PREFIX, 4)
    assert f"token {tokenizer.encode(' you').ids[0]} at position 4" in refused.message
    assert f"token {tokenizer.encode(' there').ids[0]}." in refused.message


def test_a_conversation_longer_than_what_was_served_is_refused_where_that_ends() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="hello")
    refused = refusal(correction(reply="ada", messages=messages("hi", "hello", "so?")), turn, tokenizer)
    assert refused.code is RefusalCode.UNSERVED_PREFIX
    assert refused.position == len(turn.prompt_tokens + turn.reply_tokens)
    assert "was served no token" in refused.message


def test_a_conversation_is_rendered_with_the_arguments_it_is_given_else_with_the_turns() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", template_args={"opening": "So: "})
    given = messages("hi")
    assert refusal(correction(reply="x", messages=given), turn, tokenizer).code is (
        RefusalCode.TEMPLATE_NOT_PREFIX_STABLE
    ), "the opening stands in the prompt alone"
    other = correction(reply="x", messages=given, template_args={})
    assert lesson(other, turn, tokenizer).prefix == turn.prompt_tokens[: -len(tokenizer.encode("So: ").ids) - 1]


def test_a_conversation_of_no_turn_was_never_served() -> None:
    given = correction(turn=None, reply="x", messages=messages("hi"))
    refused = refusal(given, None, FakeTokenizer())
    assert (refused.code, refused.position) == (RefusalCode.UNSERVED_PREFIX, 0)
    assert refusal(given, None, FakeTokenizer(), policy=AgentPolicy()).code is RefusalCode.POLICY_OFF


def test_so_many_tokens_of_the_turn_are_what_the_reply_comes_after() -> None:
    tokenizer = FakeTokenizer(trimming_chatml)
    turn = serve(tokenizer, "hi", reply="hello you there")
    served = turn.prompt_tokens + turn.reply_tokens
    at = len(turn.prompt_tokens) + 1
    made = lesson(correction(reply=" two", prefix_tokens=at), turn, tokenizer)
    assert tokenizer.decode(made.targets) == " two" + IM_END, "no template has a say in the middle of a reply"
    assert sequence(made)[:at] == served[:at]


def test_as_many_tokens_as_the_prompt_has_are_the_prompt() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    made = lesson(correction(reply="ada", prefix_tokens=len(turn.prompt_tokens)), turn, tokenizer)
    assert made == lesson(correction(reply="ada"), turn, tokenizer)


def test_more_tokens_than_the_turn_has_were_never_served() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    length = len(turn.prompt_tokens + turn.reply_tokens)
    refused = refusal(correction(reply="x", prefix_tokens=length + 1), turn, tokenizer)
    assert (refused.code, refused.position) == (RefusalCode.UNSERVED_PREFIX, length)
    assert lesson(correction(reply="x", prefix_tokens=length), turn, tokenizer).prefix_tokens == length - 1


def test_token_ids_are_learned_as_they_are_given() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    made = lesson(correction(reply_tokens=(5, 6, 7)), turn, tokenizer)
    assert made.targets == (5, 6, 7)
    assert sequence(made) == (*turn.prompt_tokens, 5, 6, 7)


@pytest.mark.parametrize(("reply", "end"), [("so" + END_OF_TEXT, END_OF_TEXT), ("so", END_OF_TEXT)])
def test_after_a_raw_prompt_a_reply_ends_as_the_turns_own_did_else_with_the_least_end(
    reply: str, end: str
) -> None:
    tokenizer = FakeTokenizer()
    turn = raw(tokenizer, reply)
    made = lesson(correction(reply="better"), turn, tokenizer)
    assert tokenizer.decode(made.targets) == "better" + end


def test_after_a_raw_prompt_that_ended_like_a_chat_a_reply_does_too() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(correction(reply="better"), raw(tokenizer, "so" + IM_END), tokenizer)
    assert tokenizer.decode(made.targets) == "better" + IM_END


def raw(tokenizer: FakeTokenizer, reply: str) -> Turn:
    turn = serve(tokenizer)
    tokens = {"prompt_tokens": tokenizer.encode("once upon").ids, "reply_tokens": tokenizer.encode(reply).ids}
    return turn.model_copy(update=tokens)


def test_tool_calls_are_learned_as_the_template_writes_them() -> None:
    tokenizer = FakeTokenizer(calling)
    turn = serve(tokenizer, "hi")
    made = lesson(correction(reply=CALLED), turn, tokenizer)
    assert tokenizer.decode(made.targets) == f"<tool_call>ring</tool_call>{IM_END}"
    said = ReplyMessage(content="so ", tool_calls=({"name": "ring"},))
    made = lesson(correction(reply=said), turn, tokenizer)
    assert tokenizer.decode(made.targets) == f"so <tool_call>ring</tool_call>{IM_END}"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (ReplyMessage(content="<tool_call>", tool_calls=({"name": "f"},)), RefusalCode.TOOL_CALL_REPLY),
        (ReplyMessage(reasoning_content="hm", tool_calls=({"name": "f"},)), RefusalCode.REASONING_REPLY),
    ],
)
def test_tool_calls_beside_what_cannot_be_learned_are_refused(reply: ReplyMessage, code: RefusalCode) -> None:
    tokenizer = FakeTokenizer(calling)
    assert refusal(correction(reply=reply), serve(tokenizer, "hi"), tokenizer).code is code


def test_tool_calls_that_the_template_leaves_out_or_that_follow_no_template_are_refused() -> None:
    tokenizer = FakeTokenizer()
    assert refusal(correction(reply=CALLED), serve(tokenizer, "hi"), tokenizer).code is (
        RefusalCode.TOOL_CALL_REPLY
    )
    calls = FakeTokenizer(calling)
    assert refusal(correction(reply=CALLED), raw(calls, "so"), calls).code is RefusalCode.TOOL_CALL_REPLY


def test_tool_calls_get_an_end_where_the_template_writes_none() -> None:
    def endless(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return calling(messages, add_generation_prompt, args).replace(IM_END, "")

    tokenizer = FakeTokenizer(endless)
    made = lesson(correction(reply=CALLED), serve(tokenizer, "hi"), tokenizer)
    assert tokenizer.decode(made.targets) == f"<tool_call>ring</tool_call>\n{END_OF_TEXT}"


def test_the_learning_rate_is_the_lessons() -> None:
    tokenizer = FakeTokenizer()
    assert lesson(correction(reply="x", lr=0.25), serve(tokenizer, "hi"), tokenizer).lr == 0.25
