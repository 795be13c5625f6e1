"""Lessons that are asked for by themselves: by a request for a completion about itself, or by `POST /learn`.

- Each is a signal like any other: on disk first, learned at most once, taken up again after a crash.
- What a reply should have been is learned as soon as the turn is recorded, on the slot it was served on.
- Labels ride the prefill of the very prompt that they label. If that turn comes to nothing before their lesson
  begins, they are refused: whoever asks again sends them again.
- What was asked for is recorded and begun even if whoever asked goes away. Nothing that goes wrong fails a turn.
"""

import logging
from collections.abc import Awaitable

from daemon.learning.boarding import Boarding
from daemon.learning.fates import Fate, kept_fate, refused_facts
from daemon.learning.intake import Intake
from daemon.learning.learner import Learner
from daemon.learning.putting import conflict
from daemon.learning.rides import Rides
from daemon.serving.unbroken import Unbroken
from signals.records import Correction, Labels
from signals.refusals import Refusal, RefusalCode
from signals.weights import Trust
from store import signals
from store.errors import Unknown
from store.store import Store

logger = logging.getLogger(__name__)


class AskedLessons:
    """Has lessons learned for whoever asked, and tells what became of them."""

    def __init__(self, store: Store, rides: Rides, intake: Intake, boarding: Boarding, learner: Learner) -> None:
        self._store = store
        self._rides = rides
        self._intake = intake
        self._boarding = boarding
        self._learner = learner
        self._begun = Unbroken()

    async def settled(self) -> None:
        """Return once everything that was asked for is recorded."""
        await self._begun.settled()

    async def learn_of_turn(
        self, correction: Correction, *, private: bool, sender: Trust, wait_seconds: float
    ) -> Fate:
        """Have what a recorded turn's reply should have been learned at once; wait at most so long for its end."""
        taking = self._intake.take_own(correction, private=private, sender=sender)
        try:
            await self._begun.run(self._begin(correction, taking, turn=correction.turn))
        except Exception:  # learning's border: the turn has been served
            logger.exception("signal %s could not be taken", correction.id)
        return await self.fate_in_turn(correction, wait_seconds=wait_seconds)

    async def learn(
        self, correction: Correction, *, private: bool, sender: Trust, sent: str, wait_seconds: float
    ) -> Fate:
        """Have a reply learned at once; wait at most so long for its end. `sent` is the request's fingerprint.

        Raises as `Intake.take`.
        """
        taking = self._intake.take([correction], private=private, sender=sender, sent=sent)
        await self._begun.run(self._begin(correction, taking))
        return await self.fate(correction.id, wait_seconds=wait_seconds)

    async def again(self, signal: str, *, sent: str, wait_seconds: float) -> Fate | None:
        """What became of what was asked by that id before; one that waits is tried again. None: it never was.

        Raises:
            Conflict: something else was asked by it.
        """
        try:
            kept = await self._store.read(signals.signal_of, signal)
        except Unknown:
            return None
        if kept.signal.fingerprint != sent:
            raise conflict(signal)
        await self._boarding.start(signal)
        return await self.fate(signal, wait_seconds=wait_seconds)

    async def take_labels(self, labels: Labels, *, private: bool, sender: Trust) -> None:
        """Plan the lesson of labels on a turn that is open, for its own turn to take along."""
        try:
            await self._intake.take_own(labels, private=private, sender=sender)
        except Exception:  # learning's border: the turn is served without it
            logger.exception("signal %s could not be taken", labels.id)

    def turned_private(self, agent: str, context: str) -> None:
        """A turn of the context was private: no lesson of it that waits is learned."""
        self._intake.turned_private(agent, context)

    async def give_up(self, labels: Labels) -> None:
        """Refuse what labels ask for if its lesson has not begun: their turn was not served to its end."""
        await self._learner.settled()
        made = self._rides.made_by(labels.id)
        if made is not None and not made.riding:
            message = (
                "The turn whose prompt it labels was cut off before its lesson began. Send the request again."
            )
            await self._learner.refuse_waiting(made, Refusal(code=RefusalCode.CANCELLED, message=message))

    async def fate_in_turn(self, own: Correction | Labels, *, wait_seconds: float) -> Fate:
        """What became of what a turn's own request asks for, as `fate` tells it."""
        try:
            return await self.fate(own.id, wait_seconds=wait_seconds)
        except Exception:  # learning's border: the turn has been served
            logger.exception("what became of signal %s is not known", own.id)
            return _not_recorded(own)

    async def fate(self, signal: str, *, wait_seconds: float = 0.0) -> Fate:
        """What became of what a signal asks for; while the lane has its lesson, wait for it at most so long."""
        ended = await self._rides.ended(signal, wait_seconds=wait_seconds)
        if ended is not None:
            return ended
        return await self._store.read(kept_fate, signal, riding=self._rides.is_riding(signal))

    async def _begin(self, correction: Correction, taking: Awaitable[object], *, turn: str | None = None) -> None:
        with self._rides.claimed(correction.id):
            await taking
            await self._boarding.start(correction.id, turn=turn)


def _not_recorded(own: Correction | Labels) -> Fate:
    message = (
        "The lesson could not be recorded; the service's log says why. Send it again as a signal of its turn."
    )
    refusal = Refusal(code=RefusalCode.CANCELLED, message=message)
    return Fate(None, own.kind, (own.id,), "refused", refused_facts(refusal))
