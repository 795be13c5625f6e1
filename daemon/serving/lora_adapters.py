"""Adapters from elsewhere that agents without one of their own are served with.

- One at a time: a slot has one stable set, and so at most one loaded adapter has a scale other than 0.
- A scale is folded into the tensors, and another scale is another stable set: cached rows are never mixed.
- What is loaded is held here; the lane holds the one that is used, and any that turns still use.
- An id is never given twice. A turn's set is fixed when it is submitted, whatever changes then.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from daemon.http.errors import BadRequest, Conflict, NotFound
from daemon.learning.stables import BASE_STABLE, LORA_NAMES, Stable, lora_names, lora_stable
from daemon.serving.lane_thread import LaneThread
from daemon.serving.peft_directory import PeftAdapter, check_fits, read_adapter
from daemon.serving.unbroken import Unbroken
from engine.lane import Lane
from engine.lora import AdapterShape

_PROBE = f"{LORA_NAMES}probe"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded adapter: its directory's path under the exports, what is in it, and how much of it is added."""

    id: int
    path: str
    adapter: PeftAdapter
    scale: float = 0.0

    @property
    def stable(self) -> Stable:
        """The stable set that it is at this scale."""
        return lora_stable(self.id, self.path, self.scale) if self.scale else BASE_STABLE


class LoraAdapters:
    """Loads adapters and decides which is used."""

    def __init__(self, lane: LaneThread, exports: Path, shape: AdapterShape) -> None:
        self._lane = lane
        self._exports = exports
        self._scaling = shape.alpha / shape.rank
        self._loaded: dict[int, Loaded] = {}
        self._coming = BASE_STABLE
        self._next_id = 0
        self._changing = asyncio.Lock()
        self._unbroken = Unbroken()

    @property
    def loaded(self) -> list[Loaded]:
        """Every loaded adapter, in the order of their ids."""
        return list(self._loaded.values())

    @property
    def kept(self) -> set[str]:
        """The lane's names of the sets that are used, or are about to be: nobody may have the lane forget them."""
        return {self._coming.lane_name, self._used.lane_name}

    async def stable(self) -> Stable:
        """What an agent without a set of her own is served with now."""
        async with self._changing:
            return self._used

    async def load(self, path: str) -> Loaded:
        """Load the adapter in that directory of the exports; its scale is 0.

        Raises:
            BadRequest: it is not there, or is none that this lane can serve.
        """
        adapter = await asyncio.to_thread(read_adapter, self._exports, path)
        check_fits(path, adapter, await self._lane.call(_expected))
        loaded = self._loaded[self._next_id] = Loaded(self._next_id, path, adapter)
        self._next_id += 1
        return loaded

    async def scale(self, scales: Mapping[int, float]) -> None:
        """Give every loaded adapter its scale, 0 where it isn't named, from the next turn on.

        Raises:
            NotFound: there is no such adapter.
            BadRequest: more than one would be used.
        """
        await self._unbroken.run(self._scale(scales))

    async def unload(self, number: int) -> None:
        """Forget an adapter.

        Raises:
            NotFound: there is no such adapter.
            Conflict: a turn, or a lesson that walks, uses it.
        """
        await self._unbroken.run(self._unload(number))

    @property
    def _used(self) -> Stable:
        return next((loaded.stable for loaded in self._loaded.values() if loaded.scale), BASE_STABLE)

    async def _scale(self, scales: Mapping[int, float]) -> None:
        async with self._changing:
            for number in scales:
                self._check_known(number)
            if sum(scale != 0 for scale in scales.values()) > 1:
                raise BadRequest("scale: a turn is served with one adapter; give all but one 0", param="scale")
            wanted = {
                number: Loaded(number, loaded.path, loaded.adapter, scales.get(number, 0.0))
                for number, loaded in self._loaded.items()
            }
            for loaded in wanted.values():
                if loaded.scale:
                    await self._bring(loaded)
            self._loaded |= wanted
            self._coming, keep = BASE_STABLE, self._used.lane_name
            await self._lane.call(lambda lane: _retired(lane, LORA_NAMES, keep={keep}))

    async def _unload(self, number: int) -> None:
        async with self._changing:
            self._check_known(number)
            if not await self._lane.call(lambda lane: _retired(lane, lora_names(number))):
                raise Conflict(f"adapter {number} is in use; unload it when its turns and lessons have ended")
            del self._loaded[number]

    async def _bring(self, loaded: Loaded) -> None:
        """Have the lane hold the adapter at its scale."""
        name, tensors = loaded.stable.lane_name, await asyncio.to_thread(self._scaled, loaded)
        self._coming = loaded.stable
        await self._lane.call(lambda lane: _hold(lane, name, tensors))

    def _scaled(self, loaded: Loaded) -> dict[str, Tensor]:
        """The adapter's tensors such that the lane's own factor makes its term `scale` times what it was."""
        factor = loaded.scale * loaded.adapter.scaling / self._scaling
        tensors = loaded.adapter.tensors
        return {name: value * factor if ".lora_B." in name else value for name, value in tensors.items()}

    def _check_known(self, number: int) -> None:
        if number not in self._loaded:
            raise NotFound(f"id: there is no adapter {number}; loaded are {sorted(self._loaded)}", param="id")


def _expected(lane: Lane) -> dict[str, tuple[int, ...]]:
    """The tensors that an adapter of this lane has, with their shapes."""
    bank = lane.engine.bank
    bank.create(_PROBE, seed=0)
    try:
        return {name: tuple(value.shape) for name, value in bank.parameters(_PROBE).items()}
    finally:
        bank.drop(_PROBE)


def _hold(lane: Lane, name: str, tensors: Mapping[str, Tensor]) -> None:
    if name not in lane.engine.bank:
        lane.engine.bank.load(name, tensors)


def _retired(lane: Lane, beginning: str, *, keep: Collection[str] = ()) -> bool:
    """Forget the sets whose names begin so, unless turns use them. Is none left, but for those to keep?"""
    bank = lane.engine.bank
    lane.retire_stables({name for name in bank.names if not name.startswith(beginning)} | set(keep))
    return not any(name.startswith(beginning) and name not in keep for name in bank.names)
