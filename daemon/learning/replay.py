"""Replay: an agent's shadow rebuilt from the ledger, and held against what the ledger says of it.

- On the machine that learned it every step has to come out with the hash that is recorded, and every version and
  the head with their snapshots, moments included: equal to the byte.
- On another one products sum in another order: there the versions and the head may be `MOST_APART` from their
  snapshots, relative to the largest value of each tensor. What there is no snapshot of cannot be shown there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from daemon.learning.rebuild import History, Rebuild, StepAgain
from daemon.learning.snapshots import Snapshots
from daemon.learning.workshop import State, Workshop
from store.records import Adapter

MOST_APART = 1e-6
"""Some ten times float32's resolution: what sums in another order leave, and another step does not."""


@dataclass(frozen=True, slots=True)
class Held:
    """A version or the head, as recorded and as rebuilt. `apart` is their largest relative difference."""

    adapter: Adapter
    is_equal: bool
    apart: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay: steps taken again, those of them that came out equal, and adapters compared.

    `exact`: every step was taken by a machine like this one. `ends_held`: the adapter that the last step left is
    among those compared.
    """

    exact: bool
    steps: int
    equal_steps: int
    held: tuple[Held, ...]
    ends_held: bool

    @property
    def is_equal(self) -> bool:
        """Did all of it come out to the byte?"""
        return self.steps == self.equal_steps and all(each.is_equal for each in self.held)

    @property
    def proves(self) -> bool:
        """Is what the ledger says of the shadow true?"""
        near = self.ends_held and all(each.apart <= MOST_APART for each in self.held)
        return self.is_equal or (near and not self.exact)


def replay(
    history: History,
    workshop: Workshop,
    snapshots: Snapshots,
    *,
    until: int | None,
    told: Callable[[StepAgain], None],
) -> Replayed:
    """Rebuild a shadow up to a step, else whole, and compare it with her versions and the head, as far as it goes.

    `told` is told of each step once it is taken.

    Raises:
        NotAgain: a step cannot be taken again here.
        SnapshotDamaged: a snapshot to compare with is missing or has changed, or was made for another model.
    """
    rebuild = Rebuild(history, snapshots.read(history.versions[0].snapshot), workshop)
    count = equal = 0
    for again in rebuild.steps(until=until):
        told(again)
        count, equal = count + 1, equal + again.is_equal
    reached = [adapter for adapter in (*history.versions, history.head) if adapter.sha in rebuild.at]
    held = tuple(_held(adapter, rebuild.at[adapter.sha], snapshots) for adapter in reached)
    last = [kept.step.shadow_after for kept in history.until(until)][-1:]
    ends_held = until is None or any(adapter.sha in last for adapter in reached)
    return Replayed(rebuild.is_exact(until=until), count, equal, held, ends_held)


def _held(adapter: Adapter, state: State, snapshots: Snapshots) -> Held:
    if adapter.snapshot == state.snapshot:
        return Held(adapter, is_equal=True, apart=0.0)
    return Held(adapter, is_equal=False, apart=largest_difference(snapshots.read(adapter.snapshot), state.tensors))


def largest_difference(recorded: Mapping[str, Tensor], rebuilt: Mapping[str, Tensor]) -> float:
    """The largest difference of two shadows' values, relative to the largest value of each tensor."""
    values = [name for name in recorded if ".lora_" in name and not name.startswith("optimizer.")]
    return max(_difference(recorded[name], rebuilt[name]) for name in values)


def _difference(recorded: Tensor, rebuilt: Tensor) -> float:
    apart = float((recorded - rebuilt).abs().max())
    return apart / max(float(recorded.abs().max()), torch.finfo(torch.float32).tiny)
