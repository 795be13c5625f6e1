"""How long the lane has been serving anyone, however many at once: what learning's time is measured against."""

import time
from collections.abc import Callable


class ServingTime:
    """A clock that runs while any turn is live. Told how many are, it adds up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    def live(self, turns: int) -> None:
        """So many turns are live from now on."""
        if turns and self._since is None:
            self._since = self._clock()
        elif not turns and self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None

    @property
    def seconds(self) -> float:
        """The time that at least one turn was live, up to now."""
        return self._seconds + (0.0 if self._since is None else self._clock() - self._since)
