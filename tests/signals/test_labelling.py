from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.plans import LessonPlan
from signals.policy import AgentPolicy
from signals.records import Label, Labels, Origin, Outcome
from signals.refusals import RefusalCode
from signals.tokens import RenderError
from tests.signals.fake_tokenizer import FakeTokenizer, Messages, chatml, serve, trimming_chatml
from tests.signals.test_planning import characters_before, engram, lesson, planned, refusal

WORDS = st.text(st.sampled_from("ab 😀é\n"), min_size=1, max_size=20)


def label(message: int = 0, start: int | None = None, end: int | None = None, weight: float = 1.0) -> Label:
    return Label(message=message, start=start, end=end, weight=weight)


def labels(*given: Label, **fields: Any) -> Labels:
    return Labels(**{"id": "s1", "agent": "ada", "turn": "turn-1", "labels": given, **fields})


def test_labels_are_one_run_from_the_first_to_the_last_with_nothing_learned_between() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "red figs", "yes", "blue plums rot")
    made = lesson(labels(label(2, 0, 4), label(0, 4, 8), label(2, 10, 13)), turn, tokenizer)
    learned = [target for target in made.targets if target is not None]
    assert tokenizer.decode(learned) == " figsblue rot"
    assert tokenizer.decode(made.targets).replace("...", "") == " figsblue rot"
    assert made.tokens == turn.prompt_tokens[made.prefix_tokens : made.last_position + 1]
    assert made.prefix == turn.prompt_tokens[: made.prefix_tokens]
    assert [weight for weight, target in zip(made.weights, made.targets, strict=True) if target is None] == [
        0.0
    ] * made.targets.count(None)
    assert made.targets.count(None) > 0


def test_one_label_is_the_lesson_of_the_engram_that_points_there() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "red apples are green.")
    made = lesson(labels(label(0, 5, 12)), turn, tokenizer)
    same = lesson(engram(quote="pples a"), turn, tokenizer)
    assert (made.prefix, made.tokens, made.targets, made.weights) == (
        same.prefix,
        same.tokens,
        same.targets,
        same.weights,
    )
    assert made.kind == "labels"


def test_where_labels_overlap_the_higher_weight_counts_whatever_their_order() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "one two three four")
    low, high = label(0, 0, 13, weight=0.25), label(0, 3, 18, weight=0.75)
    for given_ in (labels(low, high), labels(high, low)):
        made = lesson(given_, turn, tokenizer)
        assert tokenizer.decode(made.targets) == "one two three four"
        assert made.weights == (0.25, 0.75, 0.75, 0.75)


def test_a_label_without_a_range_is_all_of_its_message() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(labels(label(1)), serve(tokenizer, "one", "two words", "three"), tokenizer)
    assert tokenizer.decode(made.targets) == "two words"


def test_the_weight_is_the_labels_times_the_source_factor() -> None:
    tokenizer = FakeTokenizer()
    made = lesson(labels(label(weight=0.5), origin=Origin.PEER), serve(tokenizer, "hi there"), tokenizer)
    assert set(made.weights) == {0.25}


def test_the_learning_rate_is_the_lessons() -> None:
    tokenizer = FakeTokenizer()
    assert lesson(labels(label(), lr=0.5), serve(tokenizer, "hi"), tokenizer).lr == 0.5
    assert lesson(labels(label()), serve(tokenizer, "hi"), tokenizer).lr is None


def test_what_a_failed_turn_was_told_is_learned_all_the_same() -> None:
    tokenizer = FakeTokenizer()
    assert lesson(labels(label()), serve(tokenizer, "hi"), tokenizer, outcome=Outcome.FAILED)


def bare(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return "".join(str(message["content"]) for message in messages)


def test_the_very_first_token_is_read_and_not_learned() -> None:
    tokenizer = FakeTokenizer(bare)
    made = lesson(labels(label()), serve(tokenizer, "one two three"), tokenizer)
    assert (made.prefix, tokenizer.decode(made.targets)) == ((), " two three")


def test_a_label_on_the_very_first_token_does_not_lengthen_the_run() -> None:
    tokenizer = FakeTokenizer(bare)
    made = lesson(labels(label(0, 0, 3), label(0, 8, 13)), serve(tokenizer, "one two three four"), tokenizer)
    assert (made.prefix_tokens, tokenizer.decode(made.targets)) == (1, " three")


def test_the_very_first_token_alone_is_not_found() -> None:
    tokenizer = FakeTokenizer(bare)
    refused = refusal(labels(label(0, 0, 3)), serve(tokenizer, "one two"), tokenizer)
    assert refused.code is RefusalCode.SPAN_NOT_FOUND


@pytest.mark.parametrize("given_", [label(1), label(2), label(0, 0, 9), label(0, 8, 9)])
def test_what_is_not_in_the_prompt_is_not_found(given_: Label) -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(labels(label(), given_), serve(tokenizer, "hi there", reply="hello you"), tokenizer)
    assert refused.code is RefusalCode.SPAN_NOT_FOUND


def test_a_raw_prompt_has_no_message_to_label() -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(labels(label()), serve(tokenizer), tokenizer)
    assert refused.code is RefusalCode.SPAN_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"policy": AgentPolicy()}, RefusalCode.POLICY_OFF),
        (
            {"policy": AgentPolicy(learn=True, untrusted_origins=frozenset({Origin.HUMAN}))},
            RefusalCode.UNTRUSTED_SOURCE,
        ),
        ({"context_tokens": 2}, RefusalCode.PAST_CONTEXT),
    ],
)
def test_labels_have_the_refusals_that_signals_have(fields: dict[str, Any], code: RefusalCode) -> None:
    tokenizer = FakeTokenizer()
    assert refusal(labels(label()), serve(tokenizer, "hi"), tokenizer, **fields).code is code


def test_labels_of_a_private_turn_are_refused() -> None:
    tokenizer = FakeTokenizer()
    refused = refusal(labels(label()), serve(tokenizer, "hi", private=True), tokenizer)
    assert refused.code is RefusalCode.PRIVATE_CONTEXT


def test_a_prompt_that_was_served_otherwise_is_refused_where_it_differs() -> None:
    tokenizer = FakeTokenizer()
    turn = serve(tokenizer, "hi there")
    other = turn.model_copy(update={"prompt_tokens": (*turn.prompt_tokens[:3], 7, *turn.prompt_tokens[4:])})
    refused = refusal(labels(label()), other, tokenizer)
    assert (refused.code, refused.position) == (RefusalCode.TEMPLATE_NOT_PREFIX_STABLE, 3)


def test_a_template_that_refuses_the_messages_refuses_the_labels() -> None:
    def refusing(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
        raise RenderError("not today")

    turn = serve(FakeTokenizer(), "hi")
    refused = refusal(labels(label()), turn, FakeTokenizer(refusing))
    assert refused.code is RefusalCode.TEMPLATE_NOT_PREFIX_STABLE


@given(contents=st.lists(WORDS, min_size=1, max_size=3), trims=st.booleans(), data=st.data())
def test_every_token_gets_the_highest_weight_of_the_labels_that_touch_it(
    contents: list[str], trims: bool, data: st.DataObject
) -> None:
    tokenizer = FakeTokenizer(trimming_chatml if trims else chatml)
    turn = serve(tokenizer, *contents)
    pointed = []
    for _ in range(data.draw(st.integers(1, 4))):
        message = data.draw(st.integers(0, len(contents) - 1))
        start = data.draw(st.integers(0, len(contents[message]) - 1))
        end = data.draw(st.integers(start + 1, len(contents[message])))
        pointed.append(label(message, start, end, data.draw(st.sampled_from([0.25, 0.5, 1.0]))))
    made = planned(labels(*pointed), turn, tokenizer)
    if not isinstance(made, LessonPlan):
        assert trims
        return
    if trims:
        return
    offsets = tokenizer.encode(tokenizer.decode(turn.prompt_tokens)).offsets
    expected = []
    for start, end in offsets:
        touching = [
            one.weight
            for one in pointed
            if max(start, characters_before(turn, one.message) + (one.start or 0))
            < min(end, characters_before(turn, one.message) + (one.end or 0))
        ]
        expected.append(max(touching, default=0.0))
    rows = range(made.prefix_tokens + 1, made.last_position + 2)
    assert [expected[at] for at in rows] == list(made.weights)
    assert sum(expected) == sum(made.weights)
    assert [target is not None for target in made.targets] == [expected[at] > 0 for at in rows]
