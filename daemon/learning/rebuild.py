"""An agent's shadow from her first on: every step that is in the ledger taken again, with some left out if asked.

- A step names the shadow it was made from. So promotions and rollbacks need not be done again: the step after a
  rollback names the version's shadow.
- What was served with a version is served with that version as rebuilt, so that a lesson left out is not in the
  prefixes of later ones either.
- Only the first version's snapshot is read: everything else is computed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from daemon.learning.stables import is_lora
from daemon.learning.workshop import SERVED as SERVED_SET
from daemon.learning.workshop import State, Workshop, optimizer_of
from engine.again import DoneLesson, NotAgain
from engine.machine import MadeBy
from engine.served import ServedPrefix
from engine.slots import BASE
from engine.walk import LessonLearned
from store import adapters, steps
from store.database import Database
from store.records import Adapter, KeptStep


@dataclass(frozen=True, slots=True)
class History:
    """What became of an agent's shadow: her steps in order, her versions in order, and the shadow's head."""

    agent: str
    steps: tuple[KeptStep, ...]
    versions: tuple[Adapter, ...]
    head: Adapter
    prefix_of: Callable[[KeptStep], tuple[int, ...]]

    def until(self, number: int | None) -> tuple[KeptStep, ...]:
        """The steps up to that number; None is all of them."""
        return self.steps if number is None else tuple(kept for kept in self.steps if kept.number <= number)


@dataclass(frozen=True, slots=True)
class StepAgain:
    """A step as it is recorded, and as it was taken again."""

    kept: KeptStep
    learned: LessonLearned
    state: State

    @property
    def is_equal(self) -> bool:
        """Did the same shadow come of it, to the byte?"""
        return self.kept.step.shadow_after == self.state.sha


class Rebuild:
    """One agent's shadow, rebuilt; `at` has its states by the hashes that are recorded of them."""

    def __init__(
        self, history: History, begun: dict[str, Any], workshop: Workshop, *, leaving_out: Collection[str] = ()
    ) -> None:
        first = history.versions[0]
        self.at = {first.sha: State(first.sha, begun, 0)}
        self._history = history
        self._first = first
        self._workshop = workshop
        self._leaving_out = leaving_out
        self._wanted = Counter(step.step.shadow_before for step in history.steps)
        self._wanted.update([history.head.sha, *(version.sha for version in history.versions)])

    def is_exact(self, *, until: int | None = None) -> bool:
        """Was every step, up to that number, taken by a machine like this one?"""
        made = (MadeBy.of_json(kept.step.made_by) for kept in self._history.until(until) if not kept.forgotten)
        return all(self._workshop.is_this_machine(each.machine) for each in made)

    def steps(self, *, until: int | None = None) -> Iterator[StepAgain]:
        """Take the steps again, one by one, up to that number.

        Raises:
            NotAgain: one cannot be taken again here.
        """
        for kept in self._history.until(until):
            before = self._before(kept)
            if kept.forgotten or kept.step.id in self._leaving_out:
                self.at[kept.step.shadow_after] = before
            else:
                learned, after = self._again(kept, before)
                self.at[kept.step.shadow_after] = after
                yield StepAgain(kept, learned, after)
            self._done_with(kept.step.shadow_before)

    def _before(self, kept: KeptStep) -> State:
        before = self.at.get(kept.step.shadow_before)
        if before is None:
            raise NotAgain(
                f"step {kept.number} of {self._history.agent} was made from the shadow {kept.step.shadow_before}, "
                "which no step before it and no version is: the ledger's tables were changed by another hand"
            )
        return before

    def _again(self, kept: KeptStep, before: State) -> tuple[LessonLearned, State]:
        served = self._served(kept)
        lesson = DoneLesson(
            prefix=self._history.prefix_of(kept),
            served=ServedPrefix.of_json(kept.step.served),
            stable=BASE if served is None else SERVED_SET,
            tokens=kept.tokens,
            targets=kept.targets,
            weights=kept.weights,
            chunk_rows=kept.step.chunk_rows,
            lr=kept.step.lr,
        )
        return self._workshop.learn(
            lesson,
            before,
            served=served,
            made_by=MadeBy.of_json(kept.step.made_by),
            optimizer=optimizer_of(kept.step.optimizer, kept.step.hyperparameters),
            number=kept.number,
        )

    def _served(self, kept: KeptStep) -> State | None:
        """The stable set of a step's prefix, as rebuilt; None for the base, which the first version is too."""
        if kept.stable == BASE:
            return None
        if is_lora(kept.stable):
            raise NotAgain(
                f"step {kept.number} of {self._history.agent} learned after what was served with the adapter "
                f"{kept.stable}, whose tensors the ledger has not: it cannot be taken again"
            )
        number = int(kept.stable.rpartition("@")[2])
        version = next(row for row in self._history.versions if row.version == number)
        state = self.at[version.sha]
        return None if state.sha == self._first.sha else state

    def _done_with(self, sha: str) -> None:
        """Forget a state that no later step, no version and not the head needs."""
        self._wanted[sha] -= 1
        if not self._wanted[sha]:
            del self.at[sha]


def history_of(database: Database, agent: str) -> History:
    """What the ledger has of an agent's shadow. Raises `Unknown` when it has none."""
    with database.read() as session:
        kept = adapters.adapters_of(session, agent)
        done = tuple(steps.steps_of(session, agent))

    def prefix_of(step: KeptStep) -> tuple[int, ...]:
        with database.read() as session:
            return steps.prefix_of(session, step)

    return History(agent, done, kept.versions, kept.shadow, prefix_of)
