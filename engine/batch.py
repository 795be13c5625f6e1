"""The batch: what one step of the engine is asked to do, as one frozen value, flat like the wire.

- A row is a token at a position of a slot. A row without a label is served: it enters the slot's cache.
- A row with a label is learned: it runs under the shadow, reads what the slot was served before the run's
  first position, and writes nothing. The labels are the switch between the two.
- A slot's labelled rows are one run: consecutive positions, in order, none left out.
- Everything is checked before anything changes. What only the batch can tell is checked here, when it is
  built; what depends on the slots is checked by the engine before it serves the first row.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.errors import LessonRefused


@dataclass(frozen=True, slots=True)
class Label:
    """What a row should have predicted, and how much it matters. No target: the row carries no loss."""

    target: int | None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One token at one position of one slot; `output` asks for its distribution."""

    token: int
    position: int
    slot: int
    output: bool = False
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of one slot: tokens[i] stands at position start + i."""

    slot: int
    start: int
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids of the run's rows."""
        return tuple(row.token for row in self.rows)

    @property
    def stop(self) -> int:
        """One past the run's last position."""
        return self.start + len(self.rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for one step; checked when built.

    Raises:
        LessonRefused: `label_not_output`, `bad_weight` or `labels_not_one_run`, before anything runs.
    """

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        """Check what the batch alone can tell."""
        for row in self.rows:
            _check_label(row)
        for run in self.labelled_runs():
            _check_one_run(run)

    def served_runs(self) -> tuple[Run, ...]:
        """The unlabelled rows, by slot, in the order given."""
        return _by_slot(row for row in self.rows if row.label is None)

    def labelled_runs(self) -> tuple[Run, ...]:
        """The labelled rows, by slot, in the order given."""
        return _by_slot(row for row in self.rows if row.label is not None)


def serving_rows(slot: int, start: int, tokens: Sequence[int], *, outputs: int = 0) -> tuple[Row, ...]:
    """Rows that serve `tokens` at `start` and following positions; the last `outputs` of them are outputs."""
    first_output = len(tokens) - outputs
    return tuple(
        Row(token=token, position=start + i, slot=slot, output=i >= first_output) for i, token in enumerate(tokens)
    )


def lesson_rows(
    slot: int, start: int, tokens: Sequence[int], targets: Sequence[int | None], weights: Sequence[float]
) -> tuple[Row, ...]:
    """Labelled rows: the run whose row i is fed tokens[i] at position start + i and should predict targets[i]."""
    return tuple(
        Row(token=token, position=start + i, slot=slot, output=True, label=Label(target, weight))
        for i, (token, target, weight) in enumerate(zip(tokens, targets, weights, strict=True))
    )


def _by_slot(rows: Iterable[Row]) -> tuple[Run, ...]:
    grouped: dict[int, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.slot, []).append(row)
    return tuple(Run(slot, rows[0].position, tuple(rows)) for slot, rows in grouped.items())


def _check_label(row: Row) -> None:
    if row.label is None:
        return
    if not row.output:
        raise LessonRefused(
            "label_not_output",
            f"the row at position {row.position} of slot {row.slot} has a label but is not an output row; "
            "a labelled row must be an output row: set output on it or drop the label",
            position=row.position,
        )
    weight = row.label.weight
    if not math.isfinite(weight) or weight < 0:
        raise LessonRefused(
            "bad_weight",
            f"the label at position {row.position} of slot {row.slot} has weight {weight}; "
            "a weight is a finite number, 0 or more",
            position=row.position,
        )


def _check_one_run(run: Run) -> None:
    for before, after in pairwise(run.rows):
        if after.position != before.position + 1:
            raise LessonRefused(
                "labels_not_one_run",
                f"the labelled rows of slot {run.slot} jump from position {before.position} to "
                f"{after.position}; a slot's labelled rows are one run: give rows between them with no target",
                position=after.position,
            )
