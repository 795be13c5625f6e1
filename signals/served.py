"""What a turn was served, and the runs in it: rendered again it must be, token by token, what was served.

* The shift by one token is not made here: a run's span holds the tokens that are learned, not their rows.
"""

from dataclasses import dataclass

from signals.records import Turn
from signals.refusals import RefusalCode, RefusalError
from signals.spans import PlacedContent, Span, place_content
from signals.tokens import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens to be learned, ``sequence[span.start:span.end]``, and all that comes before them.

    ``shares`` say how much of the signal's weight each of them gets, 0 where it is not learned; without, all get
    all of it.
    """

    sequence: tuple[int, ...]
    span: Span
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        shares = self.shares
        assert shares is None or len(shares) == len(self.span), f"{len(shares or ())} shares of {self.span}"

    def share(self, position: int) -> float:
        """How much of the signal's weight the token at a position of the sequence gets."""
        return 1.0 if self.shares is None else self.shares[position - self.span.start]


def place_in_prompt(turn: Turn, message: int, tokenizer: ChatTokenizer) -> PlacedContent:
    """Find where the content of a message stands in the turn's prompt. Raises as `place_content`."""
    return place_content(
        [message.for_template() for message in turn.messages],
        message,
        tokenizer=tokenizer,
        add_generation_prompt=True,
        template_args=turn.template_args,
    )


def prompt_offsets(text: str, turn: Turn, tokenizer: ChatTokenizer) -> tuple[tuple[int, int], ...]:
    """Return the characters of each of the prompt's tokens, given its text rendered again.

    Raises `RefusalError` where that is not what was served.
    """
    encoding = tokenizer.encode(text)
    require_served(encoding.ids, served=turn.prompt_tokens, position=0)
    return encoding.offsets


def require_served(rendered: tuple[int, ...], *, served: tuple[int, ...], position: int) -> None:
    """Refuse where ``rendered`` is not token by token what was ``served`` from ``position`` on."""
    if rendered == served:
        return
    at = first_difference(rendered, served)
    raise RefusalError(
        RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
        f"Rendered again, the turn has {token_at(rendered, at)} at position {position + at} where "
        f"{token_at(served, at)} was served. Signal a turn of the template and tokenizer in use.",
        position=position + at,
    )


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the first index at which two sequences differ; where one begins with the other, its length."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def token_at(tokens: tuple[int, ...], at: int) -> str:
    """Name the token at an index, for a refusal."""
    return f"token {tokens[at]}" if at < len(tokens) else "no token"
