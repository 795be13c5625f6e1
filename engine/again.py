"""A lesson done again as it was done: its prefix in passes of the same shapes, its run in the same chunks.

- On the machine that learned it, from the same shadow, this is the same step to the byte.
- Rows of other slots that a pass had are stood in for: a row's bits depend on the pass's shape alone.
- Where they do not, because experts take rows by what is in them, nothing is done again.
"""

from dataclasses import dataclass

from engine.batch import Batch, lesson_rows
from engine.engine import Engine
from engine.errors import EngineError
from engine.pace import Pace
from engine.passes import Pass
from engine.served import PassShape, ServedPrefix, ServedRun
from engine.slots import BASE
from engine.walk import LessonLearned

_ANY_TOKEN = 0

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


class NotAgain(EngineError):
    """What was done cannot be done again here."""


@dataclass(frozen=True, slots=True)
class DoneLesson:
    """A lesson that was learned: all that its step was made of beside the shadow and the optimizer."""

    prefix: tuple[int, ...]
    served: ServedPrefix
    stable: str
    tokens: tuple[int, ...]
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    chunk_rows: int
    lr: float


def learn_again(engine: Engine, lesson: DoneLesson, *, shadow: str) -> LessonLearned:
    """Serve the lesson's prefix and take its step on the shadow. No lane may use the engine.

    Raises:
        NotAgain: the model routes rows by their content, or there is no memory for chunks as large as they were.
        LessonRefused: the lesson is refused here.
    """
    require_repeatable(engine)
    serve_again(engine, lesson.prefix, lesson.served, stable=lesson.stable)
    engine.pace = Pace(lesson.chunk_rows)
    slot, start = lesson.served.slot, len(lesson.prefix)
    rows = lesson_rows(slot, start, lesson.tokens, lesson.targets, lesson.weights)
    (walk,) = engine.step(Batch(rows), shadows={slot: shadow}, rates={slot: lesson.lr}).walks
    if min(walk.form.chunk_rows, len(rows)) != lesson.chunk_rows:
        walk.cancel()
        raise NotAgain(
            f"the lesson was walked in chunks of {lesson.chunk_rows} rows, and there is room for "
            f"{walk.form.chunk_rows} here; free memory, or give a lesson more with --lesson-mib"
        )
    while (learned := walk.advance()) is None:
        pass
    return learned


def require_repeatable(engine: Engine) -> None:
    """Check that the bits of the model's rows depend on the shapes of passes alone.

    Raises:
        NotAgain: they do not.
    """
    config = engine.model.model.config.get_text_config()
    if any(getattr(config, name, None) for name in _EXPERT_COUNTS):
        raise NotAgain(
            f"{type(engine.model.model).__name__} has experts, and which rows share a product there depends on "
            "what else was in the batch, which is not recorded; its steps cannot be done again to the byte"
        )


def serve_again(engine: Engine, tokens: tuple[int, ...], served: ServedPrefix, *, stable: str) -> None:
    """Have a slot hold those tokens, every row with the bits it had."""
    assert served.tokens == len(tokens), f"{len(tokens)} tokens, of which {served.tokens} were served"
    engine.rekey(served.slot, stable)
    for run in served.runs:
        if run.shape.rows > 1:
            _pass_again(engine, tokens, served.slot, run)
            continue
        for _ in range(run.count):
            _pass_again(engine, tokens, served.slot, ServedRun(run.shape, 1))


def _pass_again(engine: Engine, tokens: tuple[int, ...], slot: int, run: ServedRun) -> None:
    """One pass. What of its rows the slot does not hold is stood in for, and cut off again."""
    start, shape = len(engine.slots[slot].tokens), run.shape
    known = tokens[start : start + run.count]
    own = (*known, *[_ANY_TOKEN] * (shape.rows - run.count))
    slots = _slots(shape, slot, of=len(engine.slots))
    others = [other for other in slots if other != slot]
    _stand_in(engine, shape, slot, others)
    together = range(shape.first, shape.stop)
    engine.run_pass(
        Pass(
            slots=slots,
            starts=tuple(
                start + shape.ahead * (place in together and other != slot) for place, other in enumerate(slots)
            ),
            tokens=tuple(own if other == slot else (_ANY_TOKEN,) * shape.rows for other in slots),
        )
    )
    for other in others:
        engine.rekey(other, BASE)
    if run.count < shape.rows:
        engine.cut(slot, tokens=start + run.count)


def _slots(shape: PassShape, slot: int, *, of: int) -> tuple[int, ...]:
    """Slots that stand to `slot` as those of the pass did: its neighbours beside it, the rest away from it."""
    before, after = range(shape.first), range(of - shape.slots + shape.stop, of)
    beside = range(slot - shape.place + shape.first, slot - shape.place + shape.stop)
    slots = (*before, *beside, *after)
    assert len(slots) == shape.slots, f"{shape} in slot {slot} of {of}"
    return slots


def _stand_in(engine: Engine, shape: PassShape, slot: int, others: list[int]) -> None:
    """Give the pass's other slots the stable sets, and the states, that its shape speaks of."""
    mates = others[: shape.mate_place] + others[len(others) - (shape.mates - 1 - shape.mate_place) :]
    for other in others:
        engine.slots[other].stable = engine.slots[slot].stable if other in mates else BASE
        if engine.recurrent is not None:
            engine.recurrent.advance(other, engine.recurrent.now(slot))
