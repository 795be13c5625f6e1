"""A lesson on its slot: its rows, its walk, what is measured after its step, and how it ends without one."""

import logging
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace

from torch import Tensor

from engine.batch import Row, lesson_rows
from engine.errors import LessonRefused
from engine.loss_after import MeasureAfter, measure_after
from engine.orders import LessonEnded, LessonOrder
from engine.served import ServedPrefix
from engine.slots import Slot
from engine.walk import LessonLearned, LossAfter, Walk

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveLesson:
    """The lesson that walks, and how long turns being served have waited for its segments."""

    order: LessonOrder
    walk: Walk
    slot: Slot
    measure: MeasureAfter
    """When its loss is measured once more, after its step."""
    held_up_seconds: float = 0.0
    learned: LessonLearned | None = None
    """What its step was, once it is taken: what is left then is to copy the shadow, and to measure."""
    snapshot: dict[str, Tensor] | None = None
    measuring: Generator[None, None, LossAfter | None] | None = None
    prefix: ServedPrefix = field(init=False)
    """How what stands before its run was served. The slot keeps those rows while it walks."""

    def __post_init__(self) -> None:
        self.prefix = ServedPrefix(self.slot.index, self.slot.served.first(len(self.order.prefix)))

    def advance(self, seconds: float, *, serving: bool) -> None:
        """Run a segment: the walk's next piece, and further ones while another like it fits into `seconds`."""
        started = before = time.perf_counter()
        while not self._is_over(serving=serving):
            self._run_piece()
            now = time.perf_counter()
            if now - started + (now - before) > seconds:
                break
            before = now

    def ended(self, *, serving: bool) -> LessonEnded | None:
        """The end of the lesson, if nothing is left to do; `serving` says whether any turn is served or waits."""
        return self.finish() if self._is_over(serving=serving) else None

    def finish(self) -> LessonEnded:
        """End the lesson, whose step is taken, with what is there of it."""
        assert self.learned is not None, f"lesson {self.order.id} has not taken its step"
        if self.snapshot is None:
            self.snapshot = self.walk.shadow.snapshot()
        return LessonEnded(self.order.id, self.learned, self.held_up_seconds, self.snapshot, self.prefix)

    def _is_over(self, *, serving: bool) -> bool:
        measures = self.measure == "always" or (self.measure == "idle" and not serving)
        return self.snapshot is not None and not measures

    def _run_piece(self) -> None:
        if self.learned is None:
            self.learned = self.walk.advance()
        elif self.snapshot is None:
            self.snapshot = self.walk.shadow.snapshot()
        else:
            self._measure(self.learned)

    def _measure(self, learned: LessonLearned) -> None:
        """Run a piece of the pass after the step. What goes wrong costs the measure alone."""
        try:
            self.measuring = self.measuring or measure_after(self.walk)
            next(self.measuring)
        except StopIteration as stop:
            self.learned, self.measure = replace(learned, after=stop.value), "never"
        except Exception:  # the measure's border: the step is taken
            logger.exception("the loss of lesson %s after its step could not be measured", self.order.id)
            self.measure = "never"


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
