"""A client that goes away at any moment gives back its slot within a step, and the next is served."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from engine.duty import DutyMeter
from engine.engine import EngineSettings
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.steps import one_by_one
from tests.daemon.test_learning import corrected, go_on

LONG = "hello " * 60
BOB = {"X-Ridealong-Agent": "bob"}


def prefill_by(monkeypatch: pytest.MonkeyPatch, *, rows: int) -> None:
    """Have prompts be served so many rows at a time."""
    monkeypatch.setattr("daemon.serving.loading.EngineSettings", partial(EngineSettings, ubatch_rows=rows))


def asking(running: Running, text: str, *, stream: bool) -> "asyncio.Task[Any]":
    """A request that is on its way; cancelling it closes its connection."""
    messages = [{"role": "user", "content": text}]
    body = {"model": "tiny-chat", "messages": messages, "max_tokens": 40, "temperature": 0}

    async def ask() -> Any:
        async with running.http.post(
            f"{running.url}/v1/chat/completions", json=body | {"stream": stream}, headers=BOB
        ) as answer:
            return answer.status, await answer.text()

    return asyncio.create_task(ask())


async def leave(running: Running, client: "asyncio.Task[Any]") -> None:
    """Close the client's connection; return once the lane's next job is to end its turn."""
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    await running.until(having(lambda: not running.service.lane._jobs.empty()))


def having(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked


async def finish_reasons(running: Running) -> list[str]:
    rows = (await running.get("/ledger", kind="turn"))["rows"]
    return [row["body"]["finish_reason"] for row in rows]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "step"), [(LONG, 2), ("hello", 2), ("hello", 9)])
async def test_in_prefill_or_decode_the_slot_is_free_after_the_step_in_hand(
    start: Start, monkeypatch: pytest.MonkeyPatch, text: str, step: int, stream: bool
) -> None:
    prefill_by(monkeypatch, rows=32)
    async with start(slots=1) as running:
        with one_by_one(monkeypatch) as steps:
            client = asking(running, text, stream=stream)
            steps.allow(step - 1)
            await steps.at(step)
            await leave(running, client)
            steps.allow()
            await running.until(having(lambda: running.service.lane.live_turns == 0))
            assert steps.begun == step, "the turn went on after its client had gone"
        (slot,) = await running.get("/slots")
        assert not slot["is_processing"]
        assert (await running.ask())["status"] == 200
        assert await finish_reasons(running) == ["cancelled", "length"]


async def test_the_long_prompt_above_is_still_in_prefill_at_its_second_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill_by(monkeypatch, rows=32)
    async with start(slots=1) as running:
        told = await running.ask(LONG)
        assert told["usage"]["prompt_tokens"] > 2 * 32


@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_queue_the_turn_is_gone_and_was_never_served(
    start: Start, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with start(slots=1) as running:
        lane = running.service.lane
        with one_by_one(monkeypatch) as steps:
            first = asking(running, "hello", stream=stream)
            await steps.at(1)
            second = asking(running, "and me?", stream=stream)
            await running.until(having(lambda: lane.live_turns == 2))
            steps.allow()
            await steps.at(2)
            assert lane.queued_turns == 1
            await leave(running, second)
            steps.allow()
            await running.until(having(lambda: lane.live_turns == 1))
            steps.go_on()
            status, _ = await first
        assert status == 200
        assert await finish_reasons(running) == ["length"]
        assert (await running.ask())["status"] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_lane_has_heard_of_it_the_turn_comes_to_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with start(slots=1) as running:
        lane = running.service.lane
        with one_by_one(monkeypatch) as steps:
            first = asking(running, "hello", stream=stream)
            await steps.at(1)
            second = asking(running, "and me?", stream=stream)
            await running.until(having(lambda: lane.live_turns == 2))
            await leave(running, second)
            await running.until(having(lambda: lane.live_turns == 1))
            steps.go_on()
            status, _ = await first
        assert status == 200
        assert await finish_reasons(running) == ["length"]
        assert (await running.ask())["status"] == 200


async def test_while_it_waits_for_a_lesson_the_lesson_goes_on_and_others_are_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, correction = await corrected(running)
    held = [True]
    may_learn = DutyMeter.may_learn

    def not_yet(self: DutyMeter, now: float, *, serving: bool) -> bool:
        return not held[0] and may_learn(self, now, serving=serving)

    monkeypatch.setattr(DutyMeter, "may_learn", not_yet)
    client = asyncio.create_task(go_on(running))

    async def waits() -> bool:
        served = len(await finish_reasons(running)) == 2
        return served and (await running.get(f"/signals/{correction['id']}"))["state"] == "riding"

    await running.until(waits)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    requests = running.service._parts
    assert requests is not None
    await running.until(having(lambda: not requests.requests._tasks))
    assert not any(slot["is_processing"] for slot in await running.get("/slots"))
    assert (await running.ask("something else"))["status"] == 200
    held[0] = False
    assert (await running.fate(correction["id"], "learned"))["agent"] == AGENT
