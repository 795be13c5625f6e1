"""How long turns take for each token after their first: those beside which a lesson walked, and those alone.

- A turn is told once, at its end. It was beside a lesson if one walked at any moment since the turn's first token.
- A lesson that the lane refused before it walked counts for nothing.
"""

import time
from collections.abc import Callable


class _Mean:
    """Seconds and tokens that add up."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0

    def add(self, seconds: float, tokens: int) -> None:
        """So many more tokens took so many seconds."""
        self._seconds += seconds
        self._tokens += tokens

    @property
    def ms(self) -> float | None:
        """Milliseconds for each token; None before any."""
        return 1000 * self._seconds / self._tokens if self._tokens else None


class TokenTimes:
    """Told when lessons walk and what turns took, it says what a lesson beside a turn costs that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._walking: set[str] = set()
        self._walked_until = float("-inf")
        self._every, self._alone, self._beside = _Mean(), _Mean(), _Mean()

    def lesson_started(self, lesson: str) -> None:
        """It walks from now on."""
        self._walking.add(lesson)

    def lesson_ended(self, lesson: str) -> None:
        """It walks no more, if it did."""
        if lesson in self._walking:
            self._walking.remove(lesson)
            self._walked_until = self._clock()

    def turn_ended(self, *, seconds: float, tokens: int) -> None:
        """A turn ended now, so many seconds and tokens after its first."""
        beside = self._walking or self._walked_until > self._clock() - seconds
        self._every.add(seconds, tokens)
        (self._beside if beside else self._alone).add(seconds, tokens)

    @property
    def ms(self) -> float | None:
        """Milliseconds for each token, whatever went on beside; None before any."""
        return self._every.ms

    @property
    def ms_alone(self) -> float | None:
        """Of turns beside which no lesson walked."""
        return self._alone.ms

    @property
    def ms_beside_lessons(self) -> float | None:
        """Of turns beside which one did."""
        return self._beside.ms
