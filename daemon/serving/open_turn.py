"""A turn being served: what was asked, what comes, and the row that is kept of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from daemon.http.errors import Unavailable
from daemon.http.speaker import Speaker
from daemon.learning.stables import Stable
from daemon.serving.lane_thread import TurnHandle
from engine.orders import TokenServed, TurnEnded
from signals.records import Correction, Labels
from store import records as stored
from store.clock import now_us
from store.columns import JsonValue


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: the tokens, and the conversation they were rendered from, empty for a raw prompt.

    `template_args` are all that the template was given beside the messages, tools included: rendering with them
    again is rendering what was served. `param` is the request's field that errors about it name.
    """

    tokens: tuple[int, ...]
    messages: Sequence[Mapping[str, JsonValue]]
    template_args: Mapping[str, JsonValue]
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class OwnLesson:
    """What a request itself asks to have learned: of its reply, once that is served, or of its prompt."""

    correction: Correction | None = None
    labels: Labels | None = None

    @property
    def signal(self) -> Correction | Labels | None:
        """The signal that asks for it, if anything does."""
        return self.correction or self.labels


@dataclass(slots=True)
class OpenTurn:
    """A turn being served. `row` is what was known of it at its beginning."""

    row: stored.Turn
    speaker: Speaker
    prompt: Prompt
    stable: Stable
    handle: TurnHandle
    own: OwnLesson
    recorded: bool = False

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.row.id

    @property
    def created_at_us(self) -> int:
        """When it was asked."""
        return self.row.created_at_us

    async def events(self) -> AsyncIterator[TokenServed | TurnEnded]:
        """The reply's tokens as they come, and its end.

        Raises:
            Unavailable: the turn could not be served to its end.
        """
        async for event in self.handle.events():
            if isinstance(event, TurnEnded) and event.reason == "failed":
                raise Unavailable(f"the turn could not be served to its end: {event.error}")
            if isinstance(event, TokenServed | TurnEnded):
                yield event

    @property
    def ended(self) -> TurnEnded:
        """The turn's end, once `events` is exhausted."""
        assert self.handle.ended is not None, f"turn {self.id} has not ended"
        return self.handle.ended

    def ended_row(self) -> stored.Turn:
        """The row that is kept, once the turn has ended."""
        ended, first = self.ended, self.ended.first_token_seconds
        return replace(
            self.row,
            slot=ended.slot,
            reply_tokens=ended.reply_tokens,
            reply_text=ended.reply,
            reply_token_count=len(ended.reply_tokens),
            cached_token_count=ended.cached_tokens,
            finish_reason=ended.reason,
            first_token_ms=None if first is None else first * 1000,
            total_ms=ended.total_seconds * 1000,
        )


def open_row(turn: str, speaker: Speaker, prompt: Prompt, stable: Stable, *, lane: str) -> stored.Turn:
    """The row of a turn that begins now on that lane."""
    return stored.Turn(
        id=turn,
        agent=speaker.agent,
        context=speaker.context,
        private=speaker.private,
        lane=lane,
        slot=None,
        adapter=stable.label,
        messages=cast(JsonValue, [dict(message) for message in prompt.messages]),
        template_args=prompt.template_args,
        prompt_tokens=prompt.tokens,
        reply_tokens=(),
        reply_text="",
        prompt_token_count=len(prompt.tokens),
        reply_token_count=0,
        cached_token_count=0,
        finish_reason=None,
        created_at_us=now_us(),
        first_token_ms=None,
        total_ms=None,
    )
