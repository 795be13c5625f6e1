"""Duty: when may a learning segment run, so that the people being served hardly notice?

- While any slot is being served, a segment of t seconds is followed by at least t × (1 − share) / share seconds
  of serving: at the default share of 10 %, nine times as long.
- With every slot idle, a segment may run at once.
- A patient meter waits for such a pause first: only when none has come for that long are those who are served
  made to wait. Where turns have pauses, nobody notices a lesson.
- Pure: it is told times and answers yes or no. It never looks at a clock.
"""

DEFAULT_SHARE = 0.10
"""The share of lane time that learning may take while someone is served: above it, neighbours notice."""


class DutyMeter:
    """Told of each learning segment, it says whether the next may run."""

    def __init__(self, share: float = DEFAULT_SHARE, *, patience_seconds: float = 0.0) -> None:
        assert 0 < share <= 1, f"a duty share lies in (0, 1], not {share}"
        self.share = share
        self.patience_seconds = patience_seconds
        self._free_at = float("-inf")
        self._waits_since: float | None = None

    def learned(self, *, started: float, ended: float) -> None:
        """Take note of a segment that ran from `started` to `ended` (seconds on one monotonic clock)."""
        assert ended >= started, f"a segment ended at {ended}, before it started at {started}"
        rest = (ended - started) * (1 - self.share) / self.share
        self._free_at = ended + rest

    def may_learn(self, now: float, *, serving: bool) -> bool:
        """May a segment start at `now`, given whether any slot is being served?

        Asked whenever one could start, and only then: patience begins with the first question that finds
        someone served, and anew after each pause.
        """
        if not serving:
            self._waits_since = None
            return True
        if self._waits_since is None:
            self._waits_since = now
        return now >= max(self._free_at, self._waits_since + self.patience_seconds)

    def wait_seconds(self, now: float, *, serving: bool) -> float:
        """How long until a segment may start, if the serving goes on as it is."""
        if self.may_learn(now, serving=serving):
            return 0.0
        assert self._waits_since is not None, "someone is served, and learning waits"
        return max(self._free_at, self._waits_since + self.patience_seconds) - now
