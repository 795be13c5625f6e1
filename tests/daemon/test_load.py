"""64 clients at once on 4 slots, in every dialect: each is answered its own or refused, and nothing piles up.

- Some hang up, some ask to learn, some hold their reply to a word of their own.
- The queue is shorter than the clients are many, so that some are always refused.
- What the process holds, clients and service together, is compared at rest.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store.turns import turn_of
from tests.daemon.at_rest import Rest
from tests.daemon.conftest import Running, Start
from tests.daemon.load_client import AGENTS, Client
from tests.footprint import (
    ASKED_SECONDS,
    MOST_GROWTH_MIB,
    SOAK_SECONDS,
    Footprint,
    footprints_line,
    tell,
)

CLIENTS, SLOTS, QUEUE = 64, 4, 40
REQUEST_SECONDS = 120.0
"""An answer that takes longer is lost."""


@pytest.mark.timeout(400 + 2 * SOAK_SECONDS)
async def test_of_64_clients_at_once_each_is_answered_its_own_or_refused(start: Start, model_cache: Path) -> None:
    bundled: dict[str, Any] = {"model": None, "model_cache": model_cache, "ctx": 1024, "lr": 1e-4}
    settings = {"slots": SLOTS, "queue": QUEUE, "learn": AGENTS} | (bundled if ASKED_SECONDS else {})
    async with start(**settings) as running:
        load = await _Load.ready(running)
        warm = await load.until(_after(SOAK_SECONDS / 2))
        while await load.learners() < len(AGENTS):  # a shadow's first step makes what it keeps from then on
            warm = await load.until(_after(SOAK_SECONDS / 2))
        third = await load.until(_after(SOAK_SECONDS / 3))
        end = await load.until(_after(SOAK_SECONDS * 2 / 3))
        counts = await load.checked()
        learned = len((await running.get("/ledger", kind="step", limit="1000"))["rows"])
        tell(
            f"load: {CLIENTS} clients on {SLOTS} slots, {SOAK_SECONDS:.0f} s: {counts['asked']} asked, "
            f"{counts['served']} served, {counts['refused']} refused with 429, {counts['hung up']} hung up, "
            f"{learned} lessons learned; " + footprints_line(warm, third, end)
        )
        assert counts["asked"] == counts["served"] + counts["refused"] + counts["hung up"]
        assert min(counts["served"], counts["refused"], counts["hung up"], learned) > 0
        assert not end.grown_since(warm)
        assert end.resident_mib - third.resident_mib <= MOST_GROWTH_MIB
        assert (await running.get("/ledger/verify"))["why"] is None
        assert await running.get("/slots"), "it still answers"


class _Load:
    """The clients of a service, asking in parts with a rest after each."""

    def __init__(self, running: Running, rest: Rest, clients: list[Client]) -> None:
        self._running = running
        self._rest = rest
        self._clients = clients

    @classmethod
    async def ready(cls, running: Running) -> "_Load":
        """The clients, each having asked once while nobody else did."""
        rest = Rest(running)
        await rest.make_what_is_kept()
        async with _connections() as http:
            async with http.get(f"{running.url}/v1/models") as answer:
                model = (await answer.json())["data"][0]["id"]
            clients = [Client(number, url=running.url, model=model) for number in range(CLIENTS)]
            for client in clients:
                await client.ask_alone(http)
        replies = {client.alone for client in clients}
        assert len(replies) > CLIENTS // 2, f"only {len(replies)} replies differ: they would not tell a mix-up"
        return cls(running, rest, clients)

    async def until(self, is_over: Callable[[], bool]) -> Footprint:
        """Have all ask at once until it is time; what is held when all have been answered."""
        async with _connections() as http, asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(client.ask_on(http, until=is_over))
        return await self._rest.reached()

    async def learners(self) -> int:
        """How many agents have learned."""
        steps = await self._running.get("/ledger", kind="step", limit="1000")
        return len({row["agent"] for row in steps["rows"]})

    async def checked(self) -> Counter[str]:
        """How often they asked, and what for; each answer was its client's own."""
        turns = [answer.turn for client in self._clients for answer in client.answers]
        assert len(set(turns)) == len(turns), "a turn answered two requests"
        for client in self._clients:
            for answer in client.answers:
                await self._check(client, answer.turn)
                assert answer.text == answer.expected, f"{client.context} got another's reply"
        return sum((client.counts for client in self._clients), Counter())

    async def _check(self, client: Client, turn: str) -> None:
        kept = await self._running.store.read(turn_of, turn)
        assert (kept.agent, kept.context) == (client.agent, client.context)
        assert kept.prompt_tokens is not None
        assert client.said in self._running.service._loaded().tokenizer.decode(list(kept.prompt_tokens))


def _connections() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    )


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end
