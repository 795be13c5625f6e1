"""A lesson's loss after its step: one forward pass of the run under the shadow's new values, nothing else.

- It goes in the pieces that a walk goes in, and reads the slot's prefix as the walk did.
- It changes nothing: the step is taken, whatever becomes of this.
"""

import math
from collections.abc import Generator
from typing import Literal

from engine.lora import Use
from engine.loss import plain_loss_slices
from engine.walk import LossAfter, Walk

MeasureAfter = Literal["idle", "always", "never"]
"""When it is measured: while no turn is served or waits, always, or never."""


def measure_after(walk: Walk) -> Generator[None, None, LossAfter | None]:
    """The loss of the walk's run now, piece by piece; None where a row has no finite one."""
    states = yield from walk.final_states((Use(walk.shadow.name),))
    rows, loss, row_losses = walk.lesson.rows, 0.0, dict[int, float]()
    for part in plain_loss_slices(states, rows, walk.model.logits, vocabulary=walk.model.vocabulary):
        loss += part.loss
        row_losses |= part.row_losses
        yield
    if not all(map(math.isfinite, row_losses.values())):
        return None
    return LossAfter(loss, tuple(row_losses.get(i) for i in range(len(walk.lesson.tokens))))
