"""A lesson on its slot: its rows, its walk, and how it ends when it has not learned."""

import logging
import time
from dataclasses import dataclass

from torch import Tensor

from engine.batch import Row, lesson_rows
from engine.errors import LessonRefused
from engine.orders import LessonEnded, LessonOrder
from engine.slots import Slot
from engine.walk import LessonLearned, Walk

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveLesson:
    """The lesson that walks, and how long turns being served have waited for its segments."""

    order: LessonOrder
    walk: Walk
    slot: Slot
    held_up_seconds: float = 0.0
    learned: LessonLearned | None = None
    """What its step was, once it is taken: all that is left then is to copy the shadow."""
    snapshot: dict[str, Tensor] | None = None

    def advance(self, seconds: float) -> LessonEnded | None:
        """Run a segment: the walk's next piece, and further ones while another like it fits into `seconds`.

        The copy of the shadow after the step is the last piece, and ends the lesson.
        """
        started = before = time.perf_counter()
        while self.snapshot is None:
            self._run_piece()
            now = time.perf_counter()
            if now - started + (now - before) > seconds:
                break
            before = now
        if self.learned is None or self.snapshot is None:
            return None
        return LessonEnded(self.order.id, self.learned, self.held_up_seconds, self.snapshot)

    def _run_piece(self) -> None:
        if self.learned is None:
            self.learned = self.walk.advance()
        else:
            self.snapshot = self.walk.shadow.snapshot()


def rows_of(order: LessonOrder, slot: Slot) -> tuple[Row, ...]:
    """The labelled rows of a lesson on the slot that holds its prefix."""
    return lesson_rows(slot.index, len(order.prefix), order.tokens, order.targets, order.weights)


def refusal_of(error: Exception) -> LessonRefused:
    """A failed lesson as a refusal. The walk has put the shadow back."""
    if isinstance(error, LessonRefused):
        return error
    logger.error("a lesson failed", exc_info=error)
    if isinstance(error, MemoryError):
        return LessonRefused(
            "host_memory", "the lesson ran out of memory and was given up; the shadow is unchanged"
        )
    return LessonRefused(
        "lane_cannot_learn",
        f"the lesson failed in the engine ({error}); the shadow is unchanged. The service's log has the details",
    )


def cancelled() -> LessonRefused:
    """The refusal of a lesson that was cancelled."""
    return LessonRefused("cancelled", "the lesson was cancelled before its step; the shadow is unchanged")
