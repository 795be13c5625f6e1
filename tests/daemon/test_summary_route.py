"""`GET /ledger/summary` against what a service did."""

from datetime import UTC, datetime
from typing import Any

from tests.daemon.conftest import AGENT, Running
from tests.daemon.test_keys import ADAS, BOBS, OPERATORS, ask, guarded
from tests.daemon.test_learning import corrected, go_on

__all__ = ["guarded"]


async def refused(running: Running) -> Any:
    """A turn of an agent who doesn't learn, and a correction of it."""
    turn = await running.ask(who={"X-Ridealong-Agent": "eve", "X-Ridealong-Context": "room"})
    return await running.signal("correction", agent="eve", turn=turn["turn"], reply="no")


async def test_a_lesson_and_a_refusal_are_in_the_summary(running: Running) -> None:
    await corrected(running)
    lesson = (await go_on(running))["learn"]["lessons"][0]
    assert (await refused(running))["state"] == "refused"
    told = await running.get("/ledger/summary")
    ada, eve = told["agents"]
    assert (ada["agent"], eve["agent"]) == (AGENT, "eve")
    assert (ada["turns"], ada["steps"], ada["signals"]["learned"], ada["lessons"]["learned"]) == (2, 1, 1, 1)
    assert ada["learned_tokens"] > 0
    assert ada["learning_ms"] > 0
    assert ada["last_step"]["loss_before"] == lesson["loss"] == ada["losses"][0]["loss_before"]
    assert ada["adapter"] == {"stable_version": 0, "stable_step": 0, "shadow_step": 1}
    assert (eve["refusals"], eve["steps"], eve["last_step"], eve["losses"]) == (
        {"policy_off": 1},
        0,
        None,
        [],
    )
    totals = told["totals"]
    assert (totals["turns"], totals["refusals"]) == (3, {"policy_off": 1})
    assert totals.keys() == ada.keys() - {"agent", "adapter", "last_step", "losses"}
    assert told["ledger"]["last_seq"] == (await running.get("/ledger", limit="1000"))["rows"][-1]["seq"]


async def test_the_summary_has_the_lane_as_it_is(running: Running) -> None:
    assert (await running.get("/ledger/summary"))["lane"]["ms_per_token"] is None
    await corrected(running)
    await go_on(running)
    lane = (await running.get("/ledger/summary"))["lane"]
    assert lane["slots"] == {"total": 2, "serving": 0}
    assert lane["duty"]["most"] == 0.1
    assert lane["duty"]["share"] == lane["learning_while_serving_seconds"] / lane["serving_seconds"]
    assert lane["learning_seconds"] > 0
    assert lane["ms_per_token"] > 0
    assert (lane["queued_turns"], lane["waiting_lessons"]) == (0, 0)


async def test_a_summary_of_a_time_says_which(running: Running) -> None:
    before = datetime.now(UTC)
    await running.ask()
    told = await running.get("/ledger/summary", until=before.isoformat())
    assert (told["agents"], told["totals"]["turns"]) == ([], 0)
    assert (told["since"], datetime.fromisoformat(told["until"])) == (None, before)
    assert (await running.get("/ledger/summary", since=before.isoformat()))["totals"]["turns"] == 1
    assert "no such filter" in (await running.get("/ledger/summary", kind="turn"))["error"]["message"]


async def test_an_agents_key_sees_her_part_and_nothing_of_the_lane(guarded: Running) -> None:
    await guarded.ask(who=ADAS)
    await guarded.ask(who=BOBS)
    _, own = await ask(guarded, "GET", "/ledger/summary", **BOBS)
    assert [agent["agent"] for agent in own["agents"]] == ["bob"]
    assert (own["totals"]["turns"], own["lane"]) == (1, None)
    assert (await ask(guarded, "GET", f"/ledger/summary?agent={AGENT}", **BOBS))[0] == 403
    _, everyones = await ask(guarded, "GET", "/ledger/summary", **OPERATORS)
    assert everyones["totals"]["turns"] == 2
    _, named = await ask(guarded, "GET", f"/ledger/summary?agent={AGENT}", **OPERATORS)
    assert [agent["agent"] for agent in named["agents"]] == [AGENT]
