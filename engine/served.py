"""How the rows that a slot holds were served: the shape of the pass that each went through, run by run.

Letters: `B` slots in a pass, `T` rows of each.

- On a CPU a row's bits depend on the shape of the products it is part of, not on what else is in them. With a
  slot's tokens, what is kept here is all that the same bits can be computed from again.
- Beside T and B that is: the row's place in the pass; which slots stood next to its own in storage, since they
  attend together; how much longer the longest of these was; and its place among the slots of its stable set,
  whose term is a product of its own.
- A run is one pass of T rows of which the slot holds the first `count`, or, where T is 1, `count` passes alike.
- As JSON a run is a list of whole numbers: `[count, T]`, and where others shared its passes all the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PassShape:
    """A pass as one of its slots sees it. Places are counted in the pass's order."""

    rows: int
    slots: int = 1
    place: int = 0
    first: int = 0
    stop: int = 1
    """Slots first … stop − 1 of the pass stand next to each other in storage, this one among them."""
    ahead: int = 0
    """How many rows more than this slot the longest of these held."""
    mates: int = 1
    mate_place: int = 0
    """Slots of the pass with this one's stable set, and its place among them; 1 and 0 where that is the base."""


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Consecutive rows of a slot, and the pass, or the passes, they were served in."""

    shape: PassShape
    count: int

    def as_json(self) -> list[int]:
        """The run as whole numbers."""
        shape = self.shape
        if shape.slots == 1:
            return [self.count, shape.rows]
        others = (shape.slots, shape.place, shape.first, shape.stop, shape.ahead, shape.mates, shape.mate_place)
        return [self.count, shape.rows, *others]

    @classmethod
    def of_json(cls, numbers: Sequence[int]) -> "ServedRun":
        """The run that those numbers say."""
        return cls(PassShape(*numbers[1:]), numbers[0])


@dataclass(frozen=True, slots=True)
class ServedPrefix:
    """How a lesson's prefix was served, and in which slot of the lane's."""

    slot: int
    runs: tuple[ServedRun, ...]

    @property
    def tokens(self) -> int:
        """How many rows it has."""
        return sum(run.count for run in self.runs)

    def grown(self, rows: int) -> "ServedPrefix | None":
        """The same with the rows after it, `rows` in all, if they were served in its last pass; else None."""
        more = rows - self.tokens
        assert more >= 0, f"{rows} rows of a prefix of {self.tokens}"
        if more == 0:
            return self
        last = self.runs[-1] if self.runs else None
        if last is None or last.count + more > last.shape.rows:
            return None
        return replace(self, runs=(*self.runs[:-1], replace(last, count=last.count + more)))

    def as_json(self) -> dict[str, Any]:
        """The slot, and the runs as numbers."""
        return {"slot": self.slot, "runs": [run.as_json() for run in self.runs]}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "ServedPrefix":
        """What that JSON says."""
        return cls(told["slot"], tuple(ServedRun.of_json(run) for run in told["runs"]))


@dataclass(slots=True)
class ServedRows:
    """The runs of all that a slot holds."""

    runs: list[ServedRun] = field(default_factory=list)

    def add(self, shape: PassShape) -> None:
        """The slot was served a pass of that shape."""
        if self.runs and shape.rows == 1 and self.runs[-1].shape == shape:
            self.runs[-1] = replace(self.runs[-1], count=self.runs[-1].count + 1)
        else:
            self.runs.append(ServedRun(shape, shape.rows))

    def first(self, rows: int) -> tuple[ServedRun, ...]:
        """The runs of the first `rows` rows."""
        found, left = [], rows
        for run in self.runs:
            if left == 0:
                break
            found.append(replace(run, count=min(run.count, left)))
            left -= found[-1].count
        assert left == 0, f"{rows} rows were asked for, {rows - left} are held"
        return tuple(found)

    def cut(self, rows: int) -> None:
        """Forget what was served after the first `rows` rows."""
        self.runs = list(self.first(rows))
