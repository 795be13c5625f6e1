"""The backlog: signals that are on disk and not settled yet.

An agent's are settled in the order of their arrival. Those of agents for whom a sender waits go first; the others'
follow in the same batch where there is room, so that nobody's wait for ever.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from signals.records import Signal


@dataclass(frozen=True, slots=True)
class _Wait:
    """Someone who is to know when all of these are settled."""

    left: set[str]
    settled: "asyncio.Future[None]"


class Backlog:
    """Signals that wait to be settled, and who waits for that."""

    def __init__(self) -> None:
        self._signals: dict[str, Signal] = {}
        self._waited_for: dict[str, str] = {}
        self._waits: dict[str, list[_Wait]] = {}

    def __len__(self) -> int:
        return len(self._signals)

    def __contains__(self, signal: str) -> bool:
        return signal in self._signals

    def add(self, given: Sequence[Signal], *, waited_for: bool) -> "asyncio.Future[None]":
        """Signals are to be settled; what is given back is done when they all are.

        `waited_for` says that their sender waits until then.
        """
        wait = _Wait({signal.id for signal in given}, asyncio.get_running_loop().create_future())
        for signal in given:
            self._signals[signal.id] = signal
            self._waits.setdefault(signal.id, []).append(wait)
            if waited_for:
                self._waited_for[signal.id] = signal.agent
        if not given:
            wait.settled.set_result(None)
        return wait.settled

    def take(self, most: int) -> list[Signal]:
        """The next to be settled, at most so many."""
        agents = {*self._waited_for.values()}
        first = [signal for signal in self._signals.values() if signal.agent in agents] if agents else []
        others = (signal for signal in self._signals.values() if signal.agent not in agents)
        taken = list(islice(chain(first, others), most))
        for signal in taken:
            del self._signals[signal.id]
        return taken

    def settled(self, taken: Sequence[Signal]) -> None:
        """What was taken is settled."""
        for signal in taken:
            self._waited_for.pop(signal.id, None)
            for wait in self._waits.pop(signal.id, ()):
                wait.left.discard(signal.id)
                if not wait.left and not wait.settled.done():
                    wait.settled.set_result(None)
