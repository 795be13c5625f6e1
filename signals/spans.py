"""Spans: from what an engram points to, over characters, to tokens.

* A message is found in a rendered prompt by rendering once more with a marker in its place: around it, both
  renders must be the same text. This is exact for any chat template, or it is refused.
* A span that would split a token grows to the token's border.
* A quote is matched exactly, and must occur once; overlapping occurrences count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from signals.records import Engram, Label, Turn
from signals.refusals import RefusalCode, RefusalError
from signals.tokens import ChatTokenizer

MAX_OCCURRENCES = 100
"""Occurrences of a quote that are counted: past it the count tells nobody anything and only costs time."""

OCCURRENCES_NAMED = 5
"""Occurrences of an ambiguous quote whose place is told: enough to choose a longer quote by."""


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range, of characters or of tokens."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, f"not a span: {self.start} to {self.end}"

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engram points: characters of one of ``turn.texts``."""

    message: int
    characters: Span


@dataclass(frozen=True, slots=True)
class PlacedContent:
    """A message's content in a rendered prompt, less the ``dropped`` characters trimmed before it."""

    text: str
    content: Span
    dropped: int

    def within(self, characters: Span) -> Span:
        """Move a span of the message's content to the rendered text; what the template trimmed falls away."""
        shift = self.content.start - self.dropped
        start = max(characters.start + shift, self.content.start)
        end = min(characters.end + shift, self.content.end)
        return Span(start, max(start, end))


def points_to_own_reply(engram: Engram, turn: Turn) -> bool:
    """Tell whether ``engram`` points at the turn's own reply and nowhere else."""
    if engram.quote is None or engram.message is not None:
        return engram.message == turn.reply_index
    return engram.quote in turn.reply_text and not any(engram.quote in text for text in turn.texts[:-1])


def locate(engram: Engram, turn: Turn) -> Place:
    """Find the characters that ``engram`` points to. Raises `RefusalError` for none or several."""
    if engram.quote is not None:
        if engram.message is not None:
            _require_message("engram", turn, engram.message)
        return _locate_quote(engram.quote, turn, message=engram.message)
    assert engram.message is not None, f"engram {engram.id} points nowhere"
    return locate_range("engram", turn, engram.message, range_of(engram))


def range_of(pointer: Engram | Label) -> Span | None:
    """Return the characters that a pointer names; None is the whole message."""
    return None if pointer.start is None or pointer.end is None else Span(pointer.start, pointer.end)


def locate_range(what: str, turn: Turn, message: int, characters: Span | None) -> Place:
    """Find ``characters`` of a message, or all of it. Raises `RefusalError` where ``what`` points past an end."""
    _require_message(what, turn, message)
    length = len(turn.texts[message])
    if characters is None:
        return Place(message, Span(0, length))
    if characters.end > length:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The {what} points at characters {characters.start} to {characters.end} of {_name(message, turn)}, "
            f"which has {length}. Give a range inside it, in characters and not in bytes.",
        )
    return Place(message, characters)


def _require_message(what: str, turn: Turn, message: int) -> None:
    if message > turn.reply_index:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The {what} points at message {message} of a turn whose last, its own reply, is "
            f"{turn.reply_index}. Give an index from 0 to {turn.reply_index}.",
        )


def _locate_quote(quote: str, turn: Turn, *, message: int | None) -> Place:
    places = list(islice(_occurrences(quote, turn, message=message), MAX_OCCURRENCES))
    searched = "the turn" if message is None else _name(message, turn)
    if not places:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The quote of {len(quote)} characters does not occur in {searched}. Quote it as it was served.",
        )
    if len(places) > 1:
        raise RefusalError(
            RefusalCode.QUOTE_AMBIGUOUS,
            f"The quote occurs {_count(places)} times in {searched}: {_list(places, turn)}. "
            "Quote more of it, or give message, start and end.",
        )
    return places[0]


def _occurrences(quote: str, turn: Turn, *, message: int | None) -> Iterator[Place]:
    for index, text in enumerate(turn.texts):
        if message is not None and index != message:
            continue
        at = text.find(quote)
        while at >= 0:
            yield Place(index, Span(at, at + len(quote)))
            at = text.find(quote, at + 1)


def _count(places: Sequence[Place]) -> str:
    return f"{len(places)} or more" if len(places) == MAX_OCCURRENCES else str(len(places))


def _list(places: Sequence[Place], turn: Turn) -> str:
    named = [f"{_name(place.message, turn)} at {place.characters.start}" for place in places]
    return ", ".join(named[:OCCURRENCES_NAMED]) + (", …" if len(named) > OCCURRENCES_NAMED else "")


def _name(message: int, turn: Turn) -> str:
    return "its own reply" if message == turn.reply_index else f"message {message}"


def place_content(
    messages: Sequence[Mapping[str, object]],
    index: int,
    *,
    tokenizer: ChatTokenizer,
    add_generation_prompt: bool,
    template_args: Mapping[str, object],
) -> PlacedContent:
    """Render ``messages`` and find where the content of message ``index`` stands in the text.

    Raises `RefusalError` where the template leaves the message out, writes it changed or twice, or lets it
    change the rest, and `RenderError` where it refuses the messages.
    """

    def render(rendered: Sequence[Mapping[str, object]]) -> str:
        return tokenizer.render(rendered, add_generation_prompt=add_generation_prompt, template_args=template_args)

    text = render(messages)
    marker = next(marker for n in count() if (marker := f"ridealongmarker{n}") not in text)
    marked = [{**message, "content": marker} if i == index else message for i, message in enumerate(messages)]
    return _between(render(marked).split(marker), text, content=str(messages[index]["content"]), index=index)


def _between(around: list[str], text: str, *, content: str, index: int) -> PlacedContent:
    """Find in ``text`` the ``content`` that stands where the marker stood between the parts ``around``."""
    if len(around) == 1:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The chat template leaves message {index} out of the prompt, so none of its tokens were served. "
            "Point at a message that the model has seen.",
        )
    before, after = around[0], around[-1]
    body = text[len(before) : len(text) - len(after)]
    dropped = content.find(body)
    if text != before + body + after or dropped < 0 or body.strip() != content.strip():
        raise RefusalError(
            RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
            f"The chat template does not write message {index} once and as it is, so its place in the prompt "
            "is not certain. Point at a message that the template copies unchanged.",
        )
    return PlacedContent(text=text, content=Span(len(before), len(before) + len(body)), dropped=dropped)


def token_span(offsets: Sequence[tuple[int, int]], characters: Span) -> Span:
    """Return the tokens that stand for any of ``characters``, and whatever empty tokens lie between them.

    Raises `RefusalError` where no token does.
    """
    touching = [
        token
        for token, (start, end) in enumerate(offsets)
        if max(start, characters.start) < min(end, characters.end)
    ]
    if not touching:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"No token stands for characters {characters.start} to {characters.end} of the rendered text. "
            "Point at text that the model has seen.",
        )
    return Span(touching[0], touching[-1] + 1)
