"""What the lane tells of itself: its properties, and what its slots hold."""

import asyncio
import json
from pathlib import Path

import pytest

from daemon.serving.serving_time import ServingTime
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_learning import corrected
from tests.daemon.tiny_chat import TEMPLATE


async def test_the_properties_are_those_of_the_lane(running: Running, tiny_chat: Path) -> None:
    props = await running.get("/props")
    settings = props["default_generation_settings"]
    assert (props["total_slots"], props["n_ctx"], settings["n_ctx"]) == (2, 256, 256)
    assert (props["model_alias"], props["model_path"]) == ("tiny-chat", str(tiny_chat))
    assert props["chat_template"] == TEMPLATE
    assert props["build_info"].startswith("ridealong ")
    answer = (await running.post("/completion", {"prompt": "hello", "seed": 5, "n_predict": 1}))[1]
    used = answer["generation_settings"]
    assert settings["params"] == used | {"seed": -1, "n_predict": -1, "max_tokens": -1}


async def test_an_idle_slot_tells_how_much_it_holds_and_nothing_of_what(running: Running) -> None:
    turn = await running.ask("hello", max_tokens=3)
    held, empty = sorted(await running.get("/slots"), key=lambda slot: -slot["n_past"])
    assert held == {
        "id": held["id"],
        "n_ctx": 256,
        "is_processing": False,
        "turn": None,
        "n_past": turn["usage"]["total_tokens"] - 1,
        "stable": "base",
        "pinned_tokens": 0,
        "lesson": None,
    }
    assert (empty["n_past"], empty["is_processing"]) == (0, False)


async def test_a_slot_tells_its_turn_and_the_lesson_that_walks_on_it(start: Start) -> None:
    async with start(duty=0.001) as running:
        _, correction = await corrected(running)
        lesson = (await running.fate(correction["id"], "planned"))["lesson"]
        history = [{"role": "user", "content": "who lit the lighthouse?"}]
        turn = asyncio.create_task(
            running.ask("go on", history=history, max_tokens=150, temperature=1.9, seed=3, min_p=0)
        )
        await running.fate(correction["id"], "riding")
        slots = await running.get("/slots")
        answer = await turn
    assert [slot["turn"] for slot in slots if slot["is_processing"]] == [answer["turn"]]
    assert [slot["turn"] for slot in slots if not slot["is_processing"]] == [None]
    assert [slot["lesson"] for slot in slots if slot["pinned_tokens"]] == [lesson]
    assert [slot["lesson"] for slot in slots if not slot["pinned_tokens"]] == [None]
    assert "lighthouse" not in json.dumps(slots)
    assert AGENT not in json.dumps(slots)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
async def test_a_turn_that_is_over_is_on_no_slot(running: Running, path: str) -> None:
    asked = {"prompt": "x"} if path == "/completion" else {"model": "tiny-chat", "messages": [], "max_tokens": 1}
    await running.post(path, asked)
    assert [slot["turn"] for slot in await running.get("/slots")] == [None, None]


def test_serving_time_counts_once_however_many_are_served() -> None:
    now = 0.0
    time = ServingTime(clock=lambda: now)
    for at, live, seconds in [(1, 1, 0), (2, 2, 1), (4, 1, 3), (5, 0, 4), (9, 0, 4), (10, 1, 4), (12, 1, 6)]:
        now = float(at)
        time.live(live)
        assert time.seconds == seconds
