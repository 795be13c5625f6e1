"""Which rows go through the layers together: a batch's served runs, cut into passes.

- Single rows of several slots share a pass (decode); a longer run has passes of its own (prefill).
- Where the layers are recurrent, the last row of a prompt has a pass of its own, so that the states before it
  and after it can be kept; and a slot's first row shares no pass with rows that go on from a state.
- Where they are not, nothing here depends on what a slot did before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.batch import Run
from engine.served import PassShape
from engine.slots import BASE, Slot


@dataclass(frozen=True, slots=True)
class Pass:
    """B slots × T rows for the layers. `ending` are the slots whose prompt ends with it."""

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    ending: tuple[int, ...] = ()


def ends_prompt(run: Run, slot: Slot) -> bool:
    """Is the run's last row the end of a prompt, around which recurrent states are kept?

    An output row is, unless it is a reply's: a single row after another output row.
    """
    is_reply = len(run.rows) == 1 and slot.replying
    return slot.checkpoints is not None and run.rows[-1].output and not is_reply


def plan_passes(runs: Sequence[Run], slots: Sequence[Slot], *, ubatch_rows: int) -> list[Pass]:
    """The passes that serve the runs, of at most `ubatch_rows` rows a slot."""
    singles = [run for run in runs if len(run.rows) == 1]
    passes = [_decode_pass(group, slots) for group in _stackable(singles, slots)]
    for run in runs:
        if len(run.rows) > 1:
            passes += _prefill_passes(run, ubatch_rows, last_alone=ends_prompt(run, slots[run.slot]))
    return passes


def _stackable(singles: Sequence[Run], slots: Sequence[Slot]) -> Iterator[Sequence[Run]]:
    """Single rows by whether there is a recurrent state to stack: before a slot's first row there is none."""
    first = [run for run in singles if run.start == 0 and slots[run.slot].checkpoints is not None]
    yield from (group for group in (first, [run for run in singles if run not in first]) if group)


def _decode_pass(singles: Sequence[Run], slots: Sequence[Slot]) -> Pass:
    return Pass(
        slots=tuple(run.slot for run in singles),
        starts=tuple(run.start for run in singles),
        tokens=tuple(run.tokens for run in singles),
        ending=tuple(run.slot for run in singles if ends_prompt(run, slots[run.slot])),
    )


def _prefill_passes(run: Run, ubatch_rows: int, *, last_alone: bool) -> Iterator[Pass]:
    together = len(run.rows) - last_alone
    for first in range(0, together, ubatch_rows):
        tokens = run.tokens[first : min(first + ubatch_rows, together)]
        yield Pass(slots=(run.slot,), starts=(run.start + first,), tokens=(tokens,))
    if last_alone:
        yield Pass((run.slot,), (run.stop - 1,), (run.tokens[-1:],), ending=(run.slot,))


def neighbours(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Where, in the pass's order, slots stand next to each other in storage: [first, stop) of each stretch."""
    borders = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    return list(zip([0, *borders], [*borders, len(slots)], strict=True))


def shapes_of(part: Pass, stables: Sequence[str]) -> list[PassShape]:
    """The pass as each of its slots sees it; `stables` are the sets that they are served with."""
    rows = len(part.tokens[0])
    if len(part.slots) == 1:
        return [PassShape(rows)]
    stretches = neighbours(part.slots)
    return [_shape(part, stables, place, stretch) for stretch in stretches for place in range(*stretch)]


def _shape(part: Pass, stables: Sequence[str], place: int, stretch: tuple[int, int]) -> PassShape:
    first, stop = stretch
    is_base = stables[place] == BASE
    mates = [place] if is_base else [i for i, stable in enumerate(stables) if stable == stables[place]]
    return PassShape(
        rows=len(part.tokens[0]),
        slots=len(part.slots),
        place=place,
        first=first,
        stop=stop,
        ahead=max(part.starts[first:stop]) - part.starts[place],
        mates=len(mates),
        mate_place=mates.index(place),
    )
