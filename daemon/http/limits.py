"""How much is taken at once: turns that are open, signals on their way, a prompt's text.

What finds no room is told so at once, before any work is done for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from daemon.http.errors import BadRequest, TooMany
from daemon.serving.lane_thread import LaneThread

RETRY_SECONDS = 1.0
"""When to ask again: turns and signals end all the time, and nobody knows which is next."""

ALWAYS_CHARS = 200_000
"""A text that is cut into tokens in a fraction of a second, and so may be counted whatever the context."""


@dataclass(frozen=True, slots=True)
class Most:
    """So many of something, by that setting."""

    count: int
    what: str
    setting: str

    def check(self, wanted: int, *, taken: int) -> None:
        """Is there room for so many beside those that are taken?

        Raises:
            BadRequest: there never will be.
            TooMany: there is none now.
        """
        if wanted > self.count:
            raise BadRequest(
                f"this lane takes {self.count} {self.what} at once, and {wanted} were asked for; "
                f"ask for fewer, or raise {self.setting}"
            )
        if taken + wanted > self.count:
            raise TooMany(
                f"this lane takes {self.count} {self.what} at once, and has {taken}; "
                f"ask again when some have ended, or raise {self.setting}",
                retry_after_seconds=RETRY_SECONDS,
            )


class TextLimit:
    """How long a text may be that is cut into tokens: tokenizing takes seconds for every ten megabytes.

    No prompt is refused that would fit into the context, whatever its tokens are.
    """

    def __init__(self, *, context_tokens: int, longest_token_chars: int) -> None:
        self.chars = max(context_tokens * longest_token_chars, ALWAYS_CHARS)

    def check(self, text: str, *, param: str) -> None:
        """May this be cut into tokens?

        Raises:
            BadRequest: it is too long.
        """
        if len(text) > self.chars:
            raise BadRequest(
                f"{param} is {len(text)} characters of text, and no more than {self.chars} can fit into a slot's "
                "context: send less, or start the lane with a larger --ctx",
                param=param,
                code="context_length_exceeded",
            )


class TurnQueue:
    """Room for turns: one in each slot, and so many that wait.

    A turn takes its room before the lane hears of it, and leaves with its end in the lane.
    """

    def __init__(self, lane: LaneThread, *, slots: int, queue: int) -> None:
        self._lane = lane
        self._most = Most(slots + queue, "turns", "--queue")
        self._arriving: set[str] = set()

    def check(self, choices: int) -> None:
        """Is there room for so many turns? Raises as `Most.check` does."""
        arriving = sum(not self._lane.has(turn) for turn in self._arriving)
        self._most.check(choices, taken=arriving + self._lane.live_turns)

    @contextmanager
    def arrive(self, turn: str) -> Iterator[None]:
        """Keep room for a turn while it is made ready; by the end the lane has it, or it came to nothing."""
        self.check(1)
        self._arriving.add(turn)
        try:
            yield
        finally:
            self._arriving.discard(turn)


class SignalRoom:
    """Room for signals that are being settled."""

    def __init__(self, most: int) -> None:
        self._most = Most(most, "signals", "--max-signals")
        self._taken = 0

    def take(self, count: int) -> None:
        """Take room for so many. Raises as `Most.check` does."""
        self._most.check(count, taken=self._taken)
        self._taken += count

    def leave(self, count: int) -> None:
        """So many are settled."""
        assert count <= self._taken, f"{count} signals leave, {self._taken} are here"
        self._taken -= count
