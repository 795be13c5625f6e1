from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.records import Engram, Origin
from signals.refusals import RefusalCode, RefusalError
from signals.spans import (
    MAX_OCCURRENCES,
    Place,
    PlacedContent,
    Span,
    locate,
    place_content,
    points_to_own_reply,
    token_span,
)
from tests.signals.fake_tokenizer import FakeTokenizer, Messages, Template, chatml, serve, trimming_chatml


def engram(**pointing: int | str) -> Engram:
    body = {"id": "s1", "agent": "ada", "turn": "turn-1", "origin": Origin.HUMAN, **pointing}
    return Engram.model_validate(body)


def placed(template: Template, *contents: str, index: int = 0) -> PlacedContent:
    messages = [{"role": "user", "content": content} for content in contents]
    return place_content(
        messages, index, tokenizer=FakeTokenizer(template), add_generation_prompt=True, template_args={}
    )


def text_of(place: PlacedContent) -> str:
    return place.text[place.content.start : place.content.end]


def test_a_span_that_splits_a_token_grows_to_its_border() -> None:
    offsets = [(0, 3), (3, 7), (7, 9)]
    assert token_span(offsets, Span(4, 8)) == Span(1, 3)


def test_a_span_on_token_borders_takes_no_neighbour() -> None:
    offsets = [(0, 3), (3, 7), (7, 9)]
    assert token_span(offsets, Span(3, 7)) == Span(1, 2)


def test_every_token_of_a_character_belongs_to_it() -> None:
    offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert token_span(offsets, Span(1, 2)) == Span(1, 5)


def test_an_empty_token_belongs_only_between_two_that_do() -> None:
    offsets = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    assert token_span(offsets, Span(0, 2)) == Span(1, 4)


@pytest.mark.parametrize("characters", [Span(1, 1), Span(3, 9)])
def test_a_span_that_no_token_stands_for_is_not_found(characters: Span) -> None:
    with pytest.raises(RefusalError) as refused:
        token_span([(0, 2), (2, 2), (2, 3)], characters)
    assert refused.value.refusal.code is RefusalCode.SPAN_NOT_FOUND


def test_content_is_found_where_the_template_wrote_it_even_if_it_stands_elsewhere_too() -> None:
    place = placed(chatml, "user", "hi", "user", index=2)
    assert text_of(place) == "user"
    assert place.content.start == place.text.rindex("\nuser<|im_end|>") + 1


@given(st.lists(st.text(), min_size=1, max_size=4), st.data())
def test_content_is_found_in_any_messages(contents: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(contents) - 1))
    assert text_of(placed(chatml, *contents, index=index)) == contents[index]


@given(st.lists(st.text(), min_size=1, max_size=4), st.data())
def test_trimmed_content_is_found_with_what_was_dropped(contents: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(contents) - 1))
    place = placed(trimming_chatml, *contents, index=index)
    assert text_of(place) == contents[index].strip()
    assert contents[index][place.dropped :].startswith(text_of(place))


def test_a_span_of_trimmed_content_moves_with_it() -> None:
    place = placed(trimming_chatml, "  two words ")
    span = place.within(Span(6, 12))
    assert place.text[span.start : span.end] == "words"


@pytest.mark.parametrize("characters", [Span(0, 2), Span(11, 12)])
def test_a_span_of_nothing_but_what_was_trimmed_is_empty(characters: Span) -> None:
    assert len(placed(trimming_chatml, "  two words ").within(characters)) == 0


def test_text_that_looks_like_the_marker_does_not_mislead() -> None:
    contents = ("ridealongmarker0", "ridealongmarker1", "here")
    assert text_of(placed(chatml, *contents, index=2)) == "here"


def dropping(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return chatml(messages[1:], add_generation_prompt, args)


def shouting(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return chatml(messages, add_generation_prompt, args).upper()


def repeating(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return chatml([*messages, messages[0]], add_generation_prompt, args)


def counting_before(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return f"{len(str(messages))}:{chatml(messages, add_generation_prompt, args)}"


def counting_after(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return f"{chatml(messages, add_generation_prompt, args)}:{len(str(messages))}"


def censoring(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return chatml(messages, add_generation_prompt, args).replace("bad", "***")


def cutting(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    return chatml(messages, add_generation_prompt, args).replace("one bad ", "")


@pytest.mark.parametrize("template", [shouting, repeating, counting_before, counting_after, censoring, cutting])
def test_a_template_that_does_not_copy_the_content_once_is_refused(template: Template) -> None:
    with pytest.raises(RefusalError) as refused:
        placed(template, "one bad word", "two")
    expected = RefusalCode.SPAN_NOT_FOUND if template is shouting else RefusalCode.TEMPLATE_NOT_PREFIX_STABLE
    assert refused.value.refusal.code is expected


def test_a_message_that_the_template_leaves_out_is_not_found() -> None:
    with pytest.raises(RefusalError) as refused:
        placed(dropping, "one", "two")
    assert refused.value.refusal.code is RefusalCode.SPAN_NOT_FOUND


def test_a_quote_is_found_in_whatever_holds_it() -> None:
    turn = serve(FakeTokenizer(), "red apples", "green pears", "and plums", reply="blue figs")
    assert locate(engram(quote="apples"), turn) == Place(0, Span(4, 10))
    assert locate(engram(quote="figs"), turn) == Place(3, Span(5, 9))


def test_a_quote_is_looked_for_in_the_given_message_only() -> None:
    turn = serve(FakeTokenizer(), "apples", "more apples", "plums")
    assert locate(engram(quote="apples", message=1), turn) == Place(1, Span(5, 11))
    with pytest.raises(RefusalError) as refused:
        locate(engram(quote="apples", message=2), turn)
    assert refused.value.refusal.code is RefusalCode.SPAN_NOT_FOUND


def test_an_ambiguous_quote_is_told_how_often_and_where_it_occurs() -> None:
    turn = serve(FakeTokenizer(), "an apple, an apple", reply="an apple")
    with pytest.raises(RefusalError) as refused:
        locate(engram(quote="apple"), turn)
    assert refused.value.refusal.code is RefusalCode.QUOTE_AMBIGUOUS
    assert "3 times in the turn: message 0 at 3, message 0 at 13, its own reply at 3." in str(refused.value)


def test_overlapping_occurrences_of_a_quote_count() -> None:
    with pytest.raises(RefusalError, match="2 times"):
        locate(engram(quote="anana"), serve(FakeTokenizer(), "bananana"))


def test_occurrences_are_counted_to_a_limit() -> None:
    with pytest.raises(RefusalError, match=f"{MAX_OCCURRENCES} or more times.*, …"):
        locate(engram(quote="a"), serve(FakeTokenizer(), "a" * (MAX_OCCURRENCES + 7)))


@pytest.mark.parametrize("pointing", [{"message": 2}, {"message": 0, "start": 1, "end": 4}])
def test_what_is_outside_the_turn_is_not_found(pointing: dict[str, int]) -> None:
    with pytest.raises(RefusalError) as refused:
        locate(engram(**pointing), serve(FakeTokenizer(), "abc"))
    assert refused.value.refusal.code is RefusalCode.SPAN_NOT_FOUND


@pytest.mark.parametrize(
    ("pointing", "own"),
    [
        ({"message": 1}, True),
        ({"message": 0}, False),
        ({"message": 1, "quote": "absent"}, True),
        ({"quote": "figs"}, True),
        ({"quote": "apples"}, False),
        ({"quote": "are"}, False),
        ({"quote": "absent"}, False),
    ],
)
def test_an_engram_points_to_the_own_reply_only_where_nothing_else_is_meant(
    pointing: dict[str, int | str], own: bool
) -> None:
    turn = serve(FakeTokenizer(), "apples are", reply="figs are")
    assert points_to_own_reply(engram(**pointing), turn) is own
