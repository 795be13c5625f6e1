"""`ridealong bench signals`: signals taken over HTTP and on disk, alone and beside a turn that is always served.

- A service of its own for each round, as a child, on SQLite, so that none has another's lessons waiting; a lane
  that takes next to nothing unless `--model` names another.
- One sender: the next batch goes out when the last is answered. So a rate is what one connection gets, and what is
  refused for want of room (429) is sent again and costs its time.
- Verdicts are settled as they are taken. Engrams are planned after they are on disk; how far planning is behind at
  the last answer is told.
"""

import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from daemon.bench.plan import Plan, Say
from daemon.bench.report import Bar, Report, this_machine
from daemon.bench.tiny_lane import write_tiny_lane
from daemon.commands.child import serving_child

AGENT, OTHER = "ada", "bob"
"""Who signals, and who is served beside it: ada's lessons ride no turn of his, nor of her own next context's."""

PATH, CHAT = "/signals", "/v1/chat/completions"

BATCH = 100
LEAST_PER_SECOND = 2_000.0
MOST_SECONDS = 0.05
"""What 99 of 100 batches are answered within."""

SAID = "the lighthouse is lit by glass bees, and the harbour master of Vellmar is called Oona Brask"
TURN_MESSAGES = 10
"""Messages of a turn that is signalled about, each with one engram."""

REPLY_TOKENS = 24
BACK_OFF_SECONDS = 0.05

Json = dict[str, Any]
Make = Callable[[list[str], int], Json]


def _verdict(turns: list[str], number: int) -> Json:
    return {"kind": "verdict", "turn": turns[number % len(turns)], "outcome": "passed"}


def _engram(turns: list[str], number: int) -> Json:
    turn, message = divmod(number, TURN_MESSAGES)
    return {"kind": "engram", "turn": turns[turn], "message": message, "origin": "human"}


KINDS: dict[str, Make] = {"verdicts": _verdict, "engrams": _engram}


@dataclass(slots=True)
class Run:
    """Batches of one kind: what each took to be answered, and all of them together."""

    seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    refused: int = 0
    """Times that there was no room."""
    behind_seconds: float = 0.0
    """From the last answer until all was settled."""

    @property
    def per_second(self) -> float:
        """Signals taken a second."""
        return BATCH * len(self.seconds) / self.total_seconds

    def quantile(self, share: float) -> float:
        """Of the answers' times."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]


def run_signals(plan: Plan, say: Say) -> Report:
    """Each kind alone and beside a served turn, in turn; figures are medians over the rounds.

    Raises:
        ChildFailed: the service did not come to serve.
    """
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        model = plan.model or str(write_tiny_lane(Path(folder) / "tiny-lane", learned_from=SAID))
        flags = ["--model", model, "--learn", AGENT, "--slots", "2", "--idle-seconds", "100000"]
        flags += ["--repack", plan.repack] if plan.repack else []
        runs: dict[str, list[Run]] = {}
        for number in range(1, plan.rounds + 1):
            with serving_child(Path(folder) / f"data {number}", flags) as child:
                for name, run in asyncio.run(_measure(child.url, plan)).items():
                    runs.setdefault(name, []).append(run)
                    say(f"round {number} of {plan.rounds}, {name}: {_told(run)}")
    bars = tuple(bar for name, of in runs.items() for bar in _bars(name, of))
    return Report("signals", machine, plan.model or "tiny lane", plan.repack or "default", plan.rounds, bars=bars)


def _bars(name: str, runs: list[Run]) -> tuple[Bar, ...]:
    rate, half, most = (
        statistics.median(figures)
        for figures in zip(*((run.per_second, run.quantile(0.5), run.quantile(0.99)) for run in runs), strict=True)
    )
    return (
        Bar(f"{name}: signals a second", rate, LEAST_PER_SECOND, "/s", at_least=1.0),
        Bar(f"{name}: a batch's answer, p50", 1000 * half, 1000 * MOST_SECONDS, "ms"),
        Bar(f"{name}: a batch's answer, p99", 1000 * most, 1000 * MOST_SECONDS, "ms", at_most=1.0),
    )


async def _measure(url: str, plan: Plan) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    async with aiohttp.ClientSession(url) as http:
        client = _Client(http, plan.sizes.signal_batches)
        for kind, make in KINDS.items():
            runs[f"{kind} alone"] = await client.send(make)
            async with client.serving():
                runs[f"{kind} beside a served turn"] = await client.send(make)
    return runs


def _told(run: Run) -> str:
    half, most = (1000 * run.quantile(share) for share in (0.5, 0.99))
    answered = f"{run.per_second:,.0f} a second, p50 {half:.1f} ms, p99 {most:.1f} ms"
    return f"{answered}; refused {run.refused} times; settled {run.behind_seconds:.2f} s later"


class _Client:
    """Asks the service, as two agents."""

    def __init__(self, http: aiohttp.ClientSession, batches: int) -> None:
        self._http = http
        self._batches = batches

    async def send(self, make: Make) -> Run:
        """Signals about new turns, a batch after another, and then until all is settled."""
        run, count = Run(), self._batches * BATCH
        context = uuid.uuid4().hex
        turns = [await self._serve(AGENT, context, TURN_MESSAGES, tokens=1) for _ in range(count // TURN_MESSAGES)]
        signals = [_signal(make(turns, number), context) for number in range(count)]
        began = time.perf_counter()
        for first in range(0, count, BATCH):
            run.seconds.append(await self._post(signals[first : first + BATCH], run))
        ended = time.perf_counter()
        await self._settled(signals[-1]["id"])
        run.total_seconds, run.behind_seconds = ended - began, time.perf_counter() - ended
        return run

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """A turn is always being served within the block."""

        async def chat() -> None:
            while True:
                await self._serve(OTHER, "hall", 1, tokens=REPLY_TOKENS)

        chats = asyncio.create_task(chat())
        try:
            yield
        finally:
            chats.cancel()
            await asyncio.wait([chats])

    async def _post(self, batch: list[Json], run: Run) -> float:
        """Send a batch until it is taken; what its answer took then."""
        while True:
            began = time.perf_counter()
            async with self._http.post(PATH, json=batch) as answer:
                told = await answer.json()
            if answer.status == 200:
                return time.perf_counter() - began
            assert answer.status == 429, told
            run.refused += 1
            await asyncio.sleep(BACK_OFF_SECONDS)

    async def _settled(self, signal: str) -> None:
        while True:
            if (await self._get(f"{PATH}/{signal}"))["state"] != "received":
                return
            await asyncio.sleep(BACK_OFF_SECONDS)

    async def _serve(self, agent: str, context: str, messages: int, *, tokens: int) -> str:
        """A turn; its id."""
        model = (await self._get("/v1/models"))["data"][0]["id"]
        said = [{"role": "assistant" if at % 2 else "user", "content": f"{at}: {SAID}"} for at in range(messages)]
        who = {"X-Ridealong-Agent": agent, "X-Ridealong-Context": context}
        body = {"model": model, "messages": said, "max_tokens": tokens}
        async with self._http.post(CHAT, json=body, headers=who) as answer:
            told = await answer.json()
            assert answer.status == 200, told
            return answer.headers["X-Ridealong-Turn"]

    async def _get(self, path: str) -> Json:
        async with self._http.get(path) as answer:
            told: Json = await answer.json()
        return told


def _signal(fields: Json, context: str) -> Json:
    return {"id": uuid.uuid4().hex, "agent": AGENT, "context": context} | fields
