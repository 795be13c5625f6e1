from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.planning import plan
from signals.plans import LessonPlan
from signals.policy import AgentPolicy
from signals.records import (
    Action,
    Correction,
    Engram,
    Message,
    Origin,
    Outcome,
    ReplyMessage,
    Turn,
)
from signals.refusals import Refusal, RefusalCode
from signals.runs import LessonSignal
from signals.tokens import RenderError
from tests.signals.fake_tokenizer import (
    END_OF_TEXT,
    IM_END,
    FakeTokenizer,
    Messages,
    chatml,
    serve,
    trimming_chatml,
)

CONTEXT_TOKENS = 4096
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab 😀é\n"), max_size=30)


def engram(**given: Any) -> Engram:
    return Engram(**{"id": "s1", "agent": "ada", "turn": "turn-1", "origin": Origin.HUMAN, **given})


def correction(reply: str | ReplyMessage, **given: Any) -> Correction:
    return Correction(**{"id": "s1", "agent": "ada", "turn": "turn-1", "reply": reply, **given})


def action(**given: Any) -> Action:
    return Action(**{"id": "s1", "agent": "ada", "turn": "turn-1", **given})


def planned(
    signal: LessonSignal, turn: Turn | None, tokenizer: FakeTokenizer, **given: Any
) -> LessonPlan | Refusal:
    defaults = {"policy": AgentPolicy(learn=True), "context_tokens": CONTEXT_TOKENS}
    return plan(signal, turn, tokenizer=tokenizer, **{**defaults, **given})


def lesson(signal: LessonSignal, turn: Turn, tokenizer: FakeTokenizer, **given: Any) -> LessonPlan:
    outcome = planned(signal, turn, tokenizer, **given)
    assert isinstance(outcome, LessonPlan), outcome
    return outcome


def refusal(signal: LessonSignal, turn: Turn | None, tokenizer: FakeTokenizer, **given: Any) -> Refusal:
    outcome = planned(signal, turn, tokenizer, **given)
    assert isinstance(outcome, Refusal), outcome
    return outcome


def sequence(made: LessonPlan) -> tuple[int, ...]:
    last = made.targets[-1]
    assert last is not None, "a run ends with what is learned"
    return (*made.prefix, *made.tokens, last)


# What is planned


def test_a_reply_is_learned_on_the_rows_that_predict_it() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="hello you")
    prompt, reply = turn.prompt_tokens, turn.reply_tokens
    made = lesson(action(), turn, tokenizer)
    assert made.prefix == prompt[:-1]
    assert made.tokens == (prompt[-1], *reply[:-1])
    assert made.targets == reply
    assert made.prefix_tokens == len(prompt) - 1
    assert made.last_position == len(prompt) + len(reply) - 2


def test_a_plan_tells_whose_lesson_it_is() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(action(id="s9"), serve(tokenizer, "hi", context="kitchen"), tokenizer)
    assert (made.agent, made.context, made.turn, made.kind) == ("ada", "kitchen", "turn-1", "action")
    assert made.signals == ("s9",)


def test_a_reply_that_was_cut_off_is_learned_without_an_end() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(action(), serve(tokenizer, "hi", reply="hello", ended=False), tokenizer)
    assert tokenizer.decode(made.targets) == "hello"


def test_a_whole_message_is_learned_and_nothing_around_it() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(engram(message=1), serve(tokenizer, "one", "two words", "three"), tokenizer)
    assert tokenizer.decode(made.targets) == "two words"


def test_a_quote_that_splits_words_is_learned_with_all_of_them() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(engram(quote="pples are gr"), serve(tokenizer, "red apples are green."), tokenizer)
    assert tokenizer.decode(made.targets) == " apples are green"


def test_a_character_of_several_tokens_is_learned_whole() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(engram(quote="😀"), serve(tokenizer, "so 😀 it is"), tokenizer)
    assert tokenizer.decode(made.targets) == "😀"
    assert len(made.targets) == 4


def test_a_span_of_the_own_reply_is_learned_after_the_prompt() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="blue figs. red plums.")
    made = lesson(engram(quote="red plums"), turn, tokenizer)
    assert tokenizer.decode(made.targets) == " red plums"
    assert sequence(made) == (*turn.prompt_tokens, *turn.reply_tokens)[: made.last_position + 2]


def test_a_range_of_the_own_reply_is_learned_like_a_quote_of_it() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="blue figs. red plums.")
    by_range = lesson(engram(message=1, start=11, end=20), turn, tokenizer)
    assert by_range == lesson(engram(quote="red plums"), turn, tokenizer)


def test_the_whole_own_reply_is_learned_as_an_action_learns_it() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    assert lesson(engram(message=1), turn, tokenizer).targets == lesson(action(), turn, tokenizer).targets


def test_a_correction_is_learned_as_its_text_then_the_end_of_the_turn() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    made = lesson(correction("good morning"), turn, tokenizer)
    assert tokenizer.decode(made.targets) == "good morning" + IM_END
    assert sequence(made)[: len(turn.prompt_tokens)] == turn.prompt_tokens


def test_a_correction_in_the_form_of_a_message_is_the_same_lesson() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    as_message = lesson(correction(ReplyMessage(content="good morning")), turn, tokenizer)
    assert as_message == lesson(correction("good morning"), turn, tokenizer)


def test_a_correction_that_the_template_trims_is_learned_as_written() -> None:
    tokenizer = FakeTokenizer(trimming_chatml)
    made = lesson(correction("  good morning\n"), serve(tokenizer, "hi"), tokenizer)
    assert tokenizer.decode(made.targets) == "good morning" + IM_END


def test_where_the_template_writes_no_end_of_turn_a_correction_gets_one() -> None:
    def endless(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return chatml(messages, add_generation_prompt, args).replace(IM_END, "")

    tokenizer = FakeTokenizer(endless)
    made = lesson(correction("good morning"), serve(tokenizer, "hi"), tokenizer)
    assert tokenizer.decode(made.targets) == "good morning" + END_OF_TEXT
    assert made.targets[-1] == min(tokenizer.end_of_turn_ids)


def test_an_end_that_is_quoted_in_a_correction_is_not_the_end_of_its_turn() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(correction(f"{END_OF_TEXT} ends it"), serve(tokenizer, "hi"), tokenizer)
    assert tokenizer.decode(made.targets) == f"{END_OF_TEXT} ends it{IM_END}"


def test_what_the_template_writes_between_the_text_and_the_end_is_not_learned() -> None:
    def spaced(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return chatml(messages, add_generation_prompt, args).replace(IM_END, "\n" + IM_END)

    tokenizer = FakeTokenizer(spaced)
    made = lesson(correction("good morning"), serve(tokenizer, "hi"), tokenizer)
    assert tokenizer.decode(made.targets) == "good morning" + IM_END


def test_template_arguments_of_the_turn_are_rendered_again() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", template_args={"opening": "So: "})
    assert tokenizer.decode(lesson(engram(message=0), turn, tokenizer).targets) == "hi"


def test_the_very_first_token_is_read_and_not_learned() -> None:
    def bare(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return "".join(str(message["content"]) for message in messages)

    tokenizer = FakeTokenizer(bare)
    made = lesson(engram(message=0), serve(tokenizer, "one two three"), tokenizer)
    assert (made.prefix, tokenizer.decode(made.tokens)) == ((), "one two")
    assert tokenizer.decode(made.targets) == " two three"


@pytest.mark.parametrize(
    ("signal", "weight"),
    [
        (engram(message=0), 1.0),
        (engram(message=0, relevance=0.5), 0.5),
        (engram(message=0, origin=Origin.TOOL), 0.8),
        (engram(message=0, origin=Origin.PEER, relevance=0.5), 0.25),
        (correction("better"), 1.0),
        (correction("better", origin=Origin.SELF), 0.25),
        (action(relevance=0.5), 0.125),
    ],
)
def test_every_target_weighs_relevance_times_source_factor(signal: LessonSignal, weight: float) -> None:
    tokenizer = FakeTokenizer()
    made = lesson(signal, serve(tokenizer, "hi there"), tokenizer)
    assert made.weights == (weight,) * len(made.targets)


def test_the_latest_relevance_takes_the_place_of_the_engrams_own() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(engram(message=0, relevance=0.0), serve(tokenizer, "hi"), tokenizer, relevance=0.75)
    assert set(made.weights) == {0.75}


def test_a_failed_turn_still_teaches_what_was_perceived_and_what_should_have_been_said() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    assert lesson(engram(message=0), turn, tokenizer, outcome=Outcome.FAILED).kind == "engram"
    assert lesson(correction("better"), turn, tokenizer, outcome=Outcome.FAILED).kind == "correction"


def test_a_lesson_that_ends_on_the_last_position_of_the_context_is_planned() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    last = lesson(action(), turn, tokenizer).last_position
    assert lesson(action(), turn, tokenizer, context_tokens=last + 1).last_position == last


def characters_before(turn: Turn, index: int) -> int:
    """Count by hand the characters that ChatML and serving put before text ``index`` of ``turn``."""
    around = len("<|im_start|>\n<|im_end|>\n")
    messages = sum(around + len(m.role) + len(m.content) for m in turn.messages[:index])
    role = turn.messages[index].role if index < turn.reply_index else "assistant"
    return messages + len(f"<|im_start|>{role}\n")


@given(contents=st.lists(TEXT, max_size=3), data=st.data())
def test_an_engram_is_learned_on_exactly_the_tokens_that_touch_its_span(
    contents: list[str], data: st.DataObject
) -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, *contents)
    index = data.draw(st.sampled_from([i for i, text in enumerate(turn.texts) if text]))
    text = turn.texts[index]
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    made = lesson(engram(message=index, start=start, end=end), turn, tokenizer)

    offsets = tokenizer.encode(tokenizer.decode(turn.prompt_tokens + turn.reply_tokens)).offsets
    asked = range(characters_before(turn, index) + start, characters_before(turn, index) + end)
    touching = [token for token, (s, e) in enumerate(offsets) if any(at in asked for at in range(s, e))]
    assert touching == list(range(made.prefix_tokens + 1, made.last_position + 2))
    assert text[start:end] in tokenizer.decode(made.targets)


@given(contents=st.lists(TEXT, max_size=3), quote=TEXT.filter(bool), reply=TEXT, trims=st.booleans())
def test_whatever_the_texts_are_a_signal_ends_in_a_plan_or_a_refusal(
    contents: list[str], quote: str, reply: str, trims: bool
) -> None:
    tokenizer = FakeTokenizer(trimming_chatml if trims else chatml)
    turn = serve(tokenizer, *contents, reply=reply)
    for signal in (engram(quote=quote), engram(message=0), correction(quote), action()):
        outcome = planned(signal, turn, tokenizer)
        if isinstance(outcome, LessonPlan) and signal.kind != "correction":
            assert sequence(outcome) == (turn.prompt_tokens + turn.reply_tokens)[: outcome.last_position + 2]


# What is refused


def test_a_turn_that_is_not_there_is_unknown() -> None:
    assert refusal(action(), None, FakeTokenizer()).code is RefusalCode.TURN_UNKNOWN


def test_another_agents_turn_is_as_unknown_as_none() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", private=True)
    assert refusal(action(agent="eve"), turn, tokenizer) == refusal(action(agent="eve"), None, tokenizer)


def test_an_agent_without_a_policy_does_not_learn() -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(action(), serve(tokenizer, "hi", private=True), tokenizer, policy=AgentPolicy())
    assert refused.code is RefusalCode.POLICY_OFF


@pytest.mark.parametrize(
    ("served", "signal"),
    [
        ({"private": True}, action()),
        ({"context": "diary"}, action()),
        ({}, action(context="diary")),
    ],
)
def test_nothing_private_is_learned(served: dict[str, Any], signal: Action) -> None:
    tokenizer = FakeTokenizer()
    policy = AgentPolicy(learn=True, private_contexts=frozenset({"diary"}))
    refused = refusal(signal, serve(tokenizer, "hi", **served), tokenizer, policy=policy, outcome=Outcome.FAILED)
    assert refused.code is RefusalCode.PRIVATE_CONTEXT


@pytest.mark.parametrize(
    ("signal", "origin"), [(engram(message=0, origin=Origin.PEER), Origin.PEER), (action(), Origin.SELF)]
)
def test_a_source_that_the_policy_does_not_trust_is_refused(signal: LessonSignal, origin: Origin) -> None:
    tokenizer = FakeTokenizer()
    policy = AgentPolicy(learn=True, untrusted_origins=frozenset({origin}))
    refused = refusal(signal, serve(tokenizer, "hi"), tokenizer, policy=policy)
    assert refused.code is RefusalCode.UNTRUSTED_SOURCE


def test_a_lesson_is_held_to_the_tokens_that_one_may_have() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="one two three")
    tokens = len(turn.reply_tokens)
    lesson(action(), turn, tokenizer, policy=AgentPolicy(learn=True, max_lesson_tokens=tokens))
    refused = refusal(action(), turn, tokenizer, policy=AgentPolicy(learn=True, max_lesson_tokens=tokens - 1))
    assert refused.code is RefusalCode.LESSON_TOO_LONG
    assert refused.position == len(turn.prompt_tokens) + tokens - 1


def test_what_waits_for_a_verdict_is_not_learned_from_a_failed_turn() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    lesson(engram(message=0), turn, tokenizer, outcome=Outcome.FAILED)
    refused = refusal(engram(message=0, await_verdict=True), turn, tokenizer, outcome=Outcome.FAILED)
    assert refused.code is RefusalCode.FAILED_OUTCOME


def test_a_signal_whose_own_context_is_private_is_not_learned() -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(action(), serve(tokenizer, "hi"), tokenizer, private=True)
    assert refused.code is RefusalCode.PRIVATE_CONTEXT


@pytest.mark.parametrize("signal", [action(), engram(message=1), engram(quote="hello")])
def test_the_own_reply_of_a_failed_turn_is_not_learned(signal: LessonSignal) -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(signal, serve(tokenizer, "hi"), tokenizer, outcome=Outcome.FAILED)
    assert refused.code is RefusalCode.FAILED_OUTCOME


@pytest.mark.parametrize("signal", [engram(message=0, relevance=0.0), action(relevance=5e-324)])
def test_a_lesson_without_weight_is_refused(signal: LessonSignal) -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(signal, serve(tokenizer, "hi"), tokenizer)
    assert refused.code is RefusalCode.BAD_WEIGHT


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("", RefusalCode.EMPTY_REPLY),
        (" \n", RefusalCode.EMPTY_REPLY),
        ('ok <tool_call>{"name": "f"}</tool_call>', RefusalCode.TOOL_CALL_REPLY),
        ("<think>hm</think>ok", RefusalCode.REASONING_REPLY),
        ("hm</think>ok", RefusalCode.REASONING_REPLY),
    ],
)
@pytest.mark.parametrize(
    "signal",
    [lambda _: action(), lambda _: engram(message=1), correction],
    ids=["action", "engram", "correction"],
)
def test_a_reply_whose_substance_is_elsewhere_is_refused(
    reply: str, code: RefusalCode, signal: Callable[[str], LessonSignal]
) -> None:
    tokenizer = FakeTokenizer()
    assert refusal(signal(reply), serve(tokenizer, "hi", reply=reply), tokenizer).code is code


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (ReplyMessage(), RefusalCode.EMPTY_REPLY),
        (ReplyMessage(content="ok", tool_calls=({"name": "f"},)), RefusalCode.TOOL_CALL_REPLY),
        (ReplyMessage(content="ok", reasoning_content="hm"), RefusalCode.REASONING_REPLY),
    ],
)
def test_a_corrected_message_whose_substance_is_elsewhere_is_refused(
    reply: ReplyMessage, code: RefusalCode
) -> None:
    tokenizer = FakeTokenizer()
    assert refusal(correction(reply), serve(tokenizer, "hi"), tokenizer).code is code


@pytest.mark.parametrize("pointing", [{"quote": "absent"}, {"message": 2}, {"message": 0, "end": 9}])
def test_what_is_not_in_the_turn_is_not_found(pointing: dict[str, Any]) -> None:
    tokenizer = FakeTokenizer()
    signal = engram(**({"start": 0} if "end" in pointing else {}), **pointing)
    assert refusal(signal, serve(tokenizer, "hi"), tokenizer).code is RefusalCode.SPAN_NOT_FOUND


def test_an_empty_message_has_no_span() -> None:
    tokenizer = FakeTokenizer()
    assert refusal(engram(message=0), serve(tokenizer, ""), tokenizer).code is RefusalCode.SPAN_NOT_FOUND


def test_a_run_of_the_very_first_token_alone_is_not_found() -> None:
    def bare(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return "".join(str(message["content"]) for message in messages)

    tokenizer = FakeTokenizer(bare)
    assert refusal(engram(message=0), serve(tokenizer, "one"), tokenizer).code is RefusalCode.SPAN_NOT_FOUND


def test_a_quote_that_occurs_twice_is_ambiguous() -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(engram(quote="hello"), serve(tokenizer, "hello"), tokenizer)
    assert refused.code is RefusalCode.QUOTE_AMBIGUOUS


@pytest.mark.parametrize("position", [0, 3, -1])
def test_a_prompt_that_was_served_otherwise_is_refused_where_it_differs(position: int) -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi there")
    other = list(turn.prompt_tokens)
    other[position] += 1
    refused = refusal(engram(message=0), turn.model_copy(update={"prompt_tokens": tuple(other)}), tokenizer)
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE
    assert refused.position == position % len(other)


def test_a_prompt_that_was_served_longer_is_refused_where_it_goes_on() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi there")
    longer = turn.model_copy(update={"prompt_tokens": (*turn.prompt_tokens, 7)})
    assert refusal(engram(message=0), longer, tokenizer).position == len(turn.prompt_tokens)


def test_a_reply_that_was_generated_in_other_tokens_is_refused_where_it_differs() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", reply="hello you")
    spelled = turn.model_copy(update={"reply_tokens": tuple(b"hello you")})
    refused = refusal(engram(quote="you"), spelled, tokenizer)
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE
    assert refused.position == len(turn.prompt_tokens)


def test_a_template_that_opens_reasoning_only_in_the_prompt_is_refused_for_corrections() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi", template_args={"opening": "<think>\n"})
    assert refusal(correction("ok"), turn, tokenizer).code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE


def test_a_template_that_opens_reasoning_only_around_the_answer_is_refused_for_corrections() -> None:
    def reasoned(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        start = "<|im_start|>assistant\n"
        text = chatml(messages, False, args).replace(start, start + "<think>\n\n</think>\n\n")
        return text + (start if add_generation_prompt else "")

    tokenizer = FakeTokenizer(reasoned)
    refused = refusal(correction("ok"), serve(tokenizer, "hi"), tokenizer)
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE


def test_a_template_that_names_the_answering_role_otherwise_is_refused_for_corrections() -> None:
    def renaming(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        return chatml(messages, False, args) + ("<|im_start|>ASSISTANT\n" if add_generation_prompt else "")

    tokenizer = FakeTokenizer(renaming)
    refused = refusal(correction("ok"), serve(tokenizer, "hi"), tokenizer)
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE


def test_messages_that_the_template_refuses_are_refused_in_its_words() -> None:
    def alternating(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        if any(a["role"] == b["role"] for a, b in pairwise(messages)):
            raise RenderError("roles must alternate")
        return chatml(messages, add_generation_prompt, args)

    tokenizer = FakeTokenizer(alternating)
    turn = serve(tokenizer, "hi", "prefilled")
    refused = refusal(correction("ok"), turn, tokenizer)
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE
    assert "roles must alternate" in refused.message


def test_a_lesson_past_the_context_is_refused_with_the_numbers() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi")
    last = lesson(action(), turn, tokenizer).last_position
    refused = refusal(action(), turn, tokenizer, context_tokens=last)
    assert (refused.code, refused.position) == (RefusalCode.PAST_CONTEXT, last)
    assert f"to {last}; a context of {last} tokens ends at {last - 1}" in refused.message


def test_a_turn_without_messages_teaches_its_reply() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, reply="hello")
    assert tokenizer.decode(lesson(engram(message=0), turn, tokenizer).targets) == "hello" + IM_END


def test_the_wrong_turn_is_our_own_fault() -> None:
    tokenizer = FakeTokenizer()
    with pytest.raises(AssertionError, match="turn-1"):
        plan(
            action(turn="turn-2"),
            serve(tokenizer, "hi"),
            policy=AgentPolicy(),
            tokenizer=tokenizer,
            context_tokens=8,
        )


def test_a_message_with_tool_calls_reaches_the_template_with_them() -> None:
    def calling(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        told = [{**m, "content": f"{m['content']}{m.get('tool_calls', '')}"} for m in messages]
        return chatml(told, add_generation_prompt, args)

    tokenizer = FakeTokenizer(calling)
    called = Message(role="assistant", content="let me look", tool_calls=({"name": "f"},))
    served = serve(tokenizer, "hi").model_copy(update={"messages": (called,)})
    prompt = calling([called.for_template()], True, {})
    turn = served.model_copy(update={"prompt_tokens": tokenizer.encode(prompt).ids})
    assert tokenizer.decode(lesson(engram(message=0), turn, tokenizer).targets) == "let me look"
