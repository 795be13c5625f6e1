"""`POST /forget`: exact unlearning while the lane serves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.config import Settings
from daemon.learning import live_forget
from daemon.learning.forget_child import prepare
from store.forget import Change
from store.scopes import Found
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says
from tests.daemon.story import FIRST, adapters, command, days, forgot, learned
from tests.daemon.test_forget import shadows, written

ROOM = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
CELLAR = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "cellar"}


async def go_on(running: Running) -> None:
    """Another turn, and another lesson."""
    answer = await running.ask("and what now?")
    assert answer["adapter"] == f"{AGENT}@1"
    await learned(running, "new", answer["turn"], "room", "nobody at all")


async def test_a_lane_goes_on_from_the_shadow_of_an_agent_who_never_had_it_to_the_byte(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path
) -> None:
    async with start(data_dir=tmp_path / "twin", slots=3) as running:
        await days(running, says, without=(FIRST,))
        await go_on(running)
    async with start(data_dir=tmp_path / "data", slots=3) as running:
        await days(running, says)
        status, told = await running.post("/forget", {"signal": FIRST})
        assert (status, [each["steps_left_out"] for each in told["agents"]]) == (200, [1])
        assert written(tmp_path / "data", "glass bees", "Oona Brask") == ["Oona Brask"]
        await go_on(running)
        assert (await running.get("/ledger/verify"))["why"] is None
    assert shadows(tmp_path / "data") == shadows(tmp_path / "twin")
    assert [row[:3] for row in adapters(tmp_path / "data")] == [row[:3] for row in adapters(tmp_path / "twin")]
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0


async def test_what_waits_in_other_contexts_rides_on_and_what_is_forgotten_does_not(
    running: Running, says: Says, tmp_path: Path
) -> None:
    waiting = {}
    for context, reply in (("room", "glass bees"), ("cellar", "copper lamps")):
        says("nobody")
        who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": context}
        turn = (await running.ask("who lit the lighthouse?", who=who))["turn"]
        waiting[context] = await running.signal("correction", turn=turn, context=context, reply=reply)
    status, told = await running.post("/forget", {"context": "cellar"})
    assert (status, told["agents"][0]["lessons"]) == (200, 1)
    assert written(tmp_path / "data", "copper lamps") == []
    assert (await running.get(f"/signals/{waiting['cellar']['id']}"))["refusal"]["code"] == "forgotten"
    history = [{"role": "user", "content": "who lit the lighthouse?"}, {"role": "assistant", "content": "nobody"}]
    for who, lessons in ((ROOM, [waiting["room"]["id"]]), (CELLAR, [])):
        answer = await running.ask("go on", history=history, learn={"wait": 60}, who=who)
        assert [lesson["signals"][0] for lesson in answer["learn"]["lessons"]] == lessons


async def test_a_dry_run_tells_and_changes_nothing_and_what_is_wrong_is_refused(running: Running) -> None:
    await running.ask()
    status, told = await running.post("/forget", {"agent": AGENT, "dry_run": True})
    assert (status, told["dry_run"], told["agents"][0]["turns"]) == (200, True, 1)
    assert (await running.get("/ledger", kind="forgot"))["rows"] == []
    for body, wanted in (({}, 400), ({"signal": "a", "agent": AGENT}, 400), ({"signal": "nobodys"}, 404)):
        assert (await running.post("/forget", body))[0] == wanted
    assert (await running.post("/forget", {"agent": AGENT}))[0] == 200
    assert (await running.post("/forget", {"agent": AGENT}))[1]["agents"] == []
    assert len((await running.get("/ledger", kind="forgot"))["rows"]) == 1


Prepare = Callable[[Settings, Sequence[Found]], Awaitable[list[Change]]]


def while_preparing(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[Any]]) -> None:
    """Have something happen between what is prepared and what is done with it."""

    async def prepared(settings: Settings, found: Sequence[Found]) -> list[Change]:
        changes = await prepare(settings, found)
        await meanwhile()
        return changes

    monkeypatch.setattr(live_forget, "prepare", prepared)


async def one_lesson(running: Running, says: Says) -> str:
    says("nobody")
    turn: str = (await running.ask("who lit the lighthouse?"))["turn"]
    await learned(running, FIRST, turn, "room", "glass bees")
    return turn


async def test_who_is_forgotten_of_is_served_meanwhile_and_her_lessons_wait(
    running: Running, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await one_lesson(running, says)
    told: dict[str, Any] = {}

    async def meanwhile() -> None:
        again = {"id": "more", "turn": turn, "reply": "no", "wait": 10}
        told["status"], _ = await running.post("/learn", again, **ROOM)
        told["answer"] = await running.ask("who lit the lighthouse?")

    while_preparing(monkeypatch, meanwhile)
    assert (await running.post("/forget", {"signal": FIRST}))[0] == 200
    assert (told["status"], told["answer"]["status"]) == (202, 200)
    assert told["answer"]["learn"]["lessons"] == []
    assert (await running.get("/signals/more"))["state"] == "planned"
    await running.ask("who lit the lighthouse?", learn={"wait": 60})
    assert (await running.fate("more", "learned"))["step"] == 2


async def test_a_promotion_meanwhile_has_nothing_forgotten(
    running: Running, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_lesson(running, says)
    while_preparing(monkeypatch, lambda: running.post(f"/adapters/{AGENT}/promote", {}))
    status, told = await running.post("/forget", {"signal": FIRST})
    assert (status, told["error"]["message"].partition(":")[0]) == (
        409,
        "meanwhile something was learned, promoted or rolled back",
    )
    assert (await running.get(f"/signals/{FIRST}"))["state"] == "learned"


async def test_a_service_that_stops_ends_what_is_being_prepared(
    start: Start, says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def prepared(settings: Settings, found: Sequence[Found]) -> list[Change]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async with start() as running:
        await one_lesson(running, says)
        monkeypatch.setattr(live_forget, "prepare", prepared)
        asked = asyncio.create_task(running.post("/forget", {"signal": FIRST}))
        await begun.wait()
        parts = running.service._parts
        assert parts is not None
        await parts.forget.close()
        assert (await asked)[0] == 503
    assert forgot(tmp_path / "data") == []


async def test_what_prepares_is_ended_with_whoever_waits_for_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = list[asyncio.subprocess.Process]()
    create = asyncio.create_subprocess_exec

    async def created(*command: str, **options: Any) -> asyncio.subprocess.Process:
        children.append(await create(*command, **options))
        return children[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", created)
    preparing = asyncio.create_task(prepare(running.service._settings, []))
    await running.until(lambda: answered(bool(children)))
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert children[0].returncode is not None


async def answered(value: bool) -> bool:
    return value
