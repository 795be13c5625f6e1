"""A service under load: three agents chat, tell signals and hang up at once, and nothing piles up.

- What the process holds, clients and service together, is compared at rest: after a warm-up in which every agent
  has learned, after a third of the time, at the end. At rest no client is connected and no lesson is on its way.
- What is made on demand and then kept is made in the warm-up: a pool's threads and connections, oneDNN's kernels.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from engine.lane import Lane
from tests.daemon.at_rest import Rest
from tests.daemon.conftest import Running, Start
from tests.daemon.soak_agent import Agent
from tests.footprint import (
    ASKED_SECONDS,
    MOST_GROWTH_MIB,
    MOST_NEW_OBJECTS,
    SOAK_SECONDS,
    Footprint,
    footprints_line,
    tell,
)

NAMES = ("ada", "bob", "eve")
LEARNS_MUCH: dict[str, Any] = {"slots": len(NAMES), "learn": NAMES, "duty": 0.5, "patience_seconds": 0.0}
SETTLED = {"learned", "refused", "applied", "planned"}
"""How a signal may stand at rest: it has ended, or it waits for its agent's next turn."""


@pytest.mark.timeout(240 + 2 * SOAK_SECONDS)
async def test_nothing_piles_up_while_agents_chat_and_hang_up(start: Start, model_cache: Path) -> None:
    bundled = {"model": None, "model_cache": model_cache, "ctx": 1024, "lr": 1e-4}
    async with start(**LEARNS_MUCH | (bundled if ASKED_SECONDS else {"ctx": 512})) as running:
        soak = _Soak(running)
        warm, third, end = await soak.run()
        states = await soak.states()
        turns = await running.store.read(_turns)
        _tell(turns, states, warm, third, end)
        assert not end.grown_since(warm)
        assert end.objects - third.objects <= MOST_NEW_OBJECTS
        assert end.resident_mib - third.resident_mib <= MOST_GROWTH_MIB
        assert states.keys() <= SETTLED
        assert min(states["learned"], states["refused"], turns["cancelled"]) > 0
        assert (await running.get("/ledger/verify"))["why"] is None
        assert (await running.ask(model=soak.model))["status"] == 200


class _Soak:
    """The load on a service, in parts with a rest after each."""

    def __init__(self, running: Running) -> None:
        self.model = ""
        self._running = running
        self._agents: list[Agent] = []
        self._rest = Rest(running)

    async def run(self) -> list[Footprint]:
        """Warm up until every agent has learned, then chat for as long as is asked."""
        async with self._client() as http, http.get(f"{self._running.url}/v1/models") as answer:
            self.model = (await answer.json())["data"][0]["id"]
        self._agents = [Agent(name, url=self._running.url, model=self.model) for name in NAMES]
        await self._rest.make_what_is_kept()
        warm = await self._chat(self._all_have_learned)
        started = time.perf_counter()
        third = await self._chat(_after(started + SOAK_SECONDS / 3))
        return [warm, third, await self._chat(_after(started + SOAK_SECONDS))]

    async def states(self) -> Counter[str]:
        """How the signals stand that were told."""
        signals = [signal for agent in self._agents for signal in agent.signals]
        return Counter([(await self._running.get(f"/signals/{signal}"))["state"] for signal in signals])

    async def _chat(self, is_over: Callable[[], Awaitable[bool]]) -> Footprint:
        async with self._client() as http, asyncio.TaskGroup() as group:
            for agent in self._agents:
                group.create_task(agent.talk(http, until=is_over))
        return await self._rest.reached()

    async def _all_have_learned(self) -> bool:
        def learners(lane: Lane) -> int:
            return sum(shadow.steps > 0 for shadow in lane.engine.shadows.values())

        return await self._running.service.lane.call(learners) == len(NAMES)

    @staticmethod
    def _client() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


def _after(moment: float) -> Callable[[], Awaitable[bool]]:
    async def is_over() -> bool:
        return time.perf_counter() >= moment

    return is_over


def _turns(session: Session) -> Counter[str]:
    """How many turns the store has by how they ended, and how many tokens of replies."""
    rows = session.execute(text("SELECT finish_reason, count(*), sum(reply_token_count) FROM turns GROUP BY 1"))
    found = [(str(reason), int(turns), int(tokens)) for reason, turns, tokens in rows]
    counted = Counter({reason: turns for reason, turns, _ in found})
    return counted + Counter({"turns": counted.total(), "tokens": sum(tokens for *_, tokens in found)})


def _tell(turns: Counter[str], states: Counter[str], warm: Footprint, third: Footprint, end: Footprint) -> None:
    tell(
        f"service soak: {SOAK_SECONDS:.0f} s, {turns['turns']} turns ({turns['cancelled']} hung up on), "
        f"{turns['tokens']} tokens, signals: {states['learned']} learned, {states['refused']} refused, "
        f"{states['applied']} applied, {states['planned']} waiting; " + footprints_line(warm, third, end)
    )
