"""How many rows of a lesson go through a layer together, so that a segment takes no longer than a decode step.

- Whoever is served waits for a segment not quite as long as for a step of their own (`SEGMENT_SHARE`); between
  `SEGMENT_SECONDS`, since shorter ones gain nobody anything and longer ones are noticed.
- The rows are halved when a walk beside which somebody was served had segments that were too long, and doubled
  when they took less than a quarter of what they may, or when nobody was served. A lesson on its way keeps its
  rows, and its step says how many they were.
"""

SEGMENT_SECONDS = (0.020, 0.250)

SEGMENT_SHARE = 0.75
"""Of a decode step's time: how long a piece takes is guessed from the one before, and a guess may fall short."""

LEAST_ROWS = 32
"""Below, products take nearly as long for fewer rows, and a lesson ever longer."""


class Pace:
    """The rows of a chunk, by what serving and learning took. Pure: it is told times and reads no clock."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self._most, self._least = chunk_rows, min(chunk_rows, LEAST_ROWS)
        self._step_seconds = 0.0
        self._served = False

    @property
    def segment_seconds(self) -> float:
        """How long a segment may take: somewhat less than the last decode step's time."""
        shortest, longest = SEGMENT_SECONDS
        return min(max(SEGMENT_SHARE * self._step_seconds, shortest), longest)

    def served(self, seconds: float) -> None:
        """A decode step took so long."""
        self._step_seconds, self._served = seconds, True

    def walked(self, rows: int, seconds: float) -> None:
        """A walk in chunks of so many rows had segments that took so long, most of them."""
        served, self._served = self._served, False
        if served and seconds > self.segment_seconds:
            self.chunk_rows = max(self._least, min(rows, self.chunk_rows) // 2)
        elif rows == self.chunk_rows and (not served or seconds < self.segment_seconds / 4):
            self.chunk_rows = min(self._most, 2 * rows)
