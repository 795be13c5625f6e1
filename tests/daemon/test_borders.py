"""What goes wrong stays where it went wrong: clients that leave, disks that fail, adapters that do not fit."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from daemon.http.errors import SnapshotDamaged
from daemon.learning.adapters import shadow_name
from store import steps
from store.errors import StorageFailed
from store.records import Step
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_learning import corrected, go_on


async def test_a_turn_whose_client_left_is_recorded_even_if_nothing_follows(running: Running) -> None:
    asking = asyncio.create_task(running.ask("hello", max_tokens=200, temperature=1.5, seed=2))

    async def processing() -> bool:
        return any(slot["is_processing"] for slot in await running.get("/slots"))

    await running.until(processing)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def recorded() -> bool:
        return len((await running.get("/ledger", kind="turn"))["rows"]) == 1

    await running.until(recorded)
    (row,) = (await running.get("/ledger", kind="turn"))["rows"]
    assert row["body"]["finish_reason"] == "cancelled"
    assert running.service.lane.live_turns == 0


async def test_a_sender_that_leaves_has_its_signal_settled_all_the_same(running: Running) -> None:
    turn = (await running.ask())["turn"]
    sending = asyncio.create_task(running.signal("action", id="left-behind", turn=turn))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    again = await running.signal("action", id="left-behind", turn=turn)
    assert again["state"] == "planned"


async def test_a_rollback_on_an_idle_lane_ends_what_waits_in_the_lane(start: Start) -> None:
    async with start(duty=0.0001) as running:
        await corrected(running)
        await go_on(running)
        status, own = await running.post(f"/adapters/{AGENT}/rollback", {"version": 0})
        assert status == 200
        sha = await running.service.lane.call(lambda lane: lane.engine.shadows[shadow_name(AGENT)].sha256())
        assert sha == own["shadow"]["sha"]


async def test_an_operator_who_leaves_during_a_promotion_leaves_store_and_lane_agreed(running: Running) -> None:
    await corrected(running)
    await go_on(running)
    promoting = asyncio.create_task(running.post(f"/adapters/{AGENT}/promote", {}))
    await asyncio.sleep(0.005)
    promoting.cancel()
    await asyncio.gather(promoting, return_exceptions=True)

    answer = await running.ask("who lit the lighthouse?")
    (own,) = await running.get("/adapters")
    version = own["stable"]["version"]
    assert answer["adapter"] == (f"{AGENT}@{version}" if version else "base")


async def test_a_step_that_cannot_be_recorded_is_taken_back_and_serving_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await corrected(running)
    await go_on(running)
    (own,) = await running.get("/adapters")

    def full(_session: Session, _step: Step) -> Any:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(steps, "commit_step", full)
    await corrected(running)
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert lesson["status"] == "refused"
    sha = await running.service.lane.call(lambda lane: lane.engine.shadows[shadow_name(AGENT)].sha256())
    assert sha == own["shadow"]["sha"]
    monkeypatch.undo()
    await corrected(running)
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert lesson["status"] == "learned"
    assert (await running.get("/ledger/verify"))["why"] is None


async def test_a_lesson_whose_weights_vanish_is_refused_and_the_lane_goes_on(running: Running) -> None:
    await corrected(running, relevance=1e-50)
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert (lesson["status"], lesson["refusal"]["code"]) == ("refused", "lane_cannot_learn")
    await corrected(running)
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert lesson["status"] == "learned"


async def test_adapters_made_for_another_rank_are_not_started_with(start: Start) -> None:
    async with start(rank=4) as running:
        await corrected(running)
        await go_on(running)
    with pytest.raises(SnapshotDamaged, match="rank 4"):
        async with start(rank=8):
            pass
    async with start(rank=4) as running:
        await corrected(running)


async def test_a_snapshot_that_was_changed_is_not_served(start: Start, tmp_path: Path) -> None:
    async with start() as running:
        await corrected(running)
        await go_on(running)
        await running.post(f"/adapters/{AGENT}/promote", {})
        (own,) = await running.get("/adapters")
        assert own["stable"]["version"] == 1
    for path in (tmp_path / "data" / "adapters").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    async with start() as running:
        answer = await running.ask()
        assert answer["status"] == 503
        assert "changed" in answer["error"]["message"]


async def test_a_waiting_lesson_of_an_agent_who_may_no_longer_learn_is_refused_at_the_start(start: Start) -> None:
    async with start() as running:
        _, correction = await corrected(running)
    async with start(learn=()) as running:
        fate = await running.get(f"/signals/{correction['id']}")
        assert (fate["state"], fate["refusal"]["code"]) == ("refused", "policy_off")


async def test_a_lesson_that_waited_over_a_restart_rides_when_its_prefix_is_served_again(start: Start) -> None:
    async with start() as running:
        _, correction = await corrected(running)
    async with start() as running:
        answer = await running.ask("something else first", learn={"wait": 60})
        assert [lesson["status"] for lesson in answer["learn"]["lessons"]] == ["waiting"]
        (lesson,) = (await go_on(running))["learn"]["lessons"]
        assert lesson["status"] == "learned"
        assert (await running.get(f"/signals/{correction['id']}"))["state"] == "learned"


async def test_an_action_learns_the_reply_without_the_stop_string_that_ended_it(running: Running) -> None:
    whole = (await running.ask(max_tokens=40))["choices"][0]["message"]["content"]
    stopped = await running.ask(max_tokens=40, stop=[whole[6:8]])
    action = await running.signal("action", turn=stopped["turn"])
    assert action["state"] == "planned"
    (row,) = (await running.get("/ledger", kind="lesson"))["rows"]
    kept = await running.ask(max_tokens=40)
    assert row["body"]["rows"] < kept["usage"]["completion_tokens"]


async def test_an_untrusted_origin_is_kept_and_not_learned(start: Start) -> None:
    async with start(untrusted=("peer",)) as running:
        turn = (await running.ask("the harbour master is Oona"))["turn"]
        told = await running.signal("engram", turn=turn, message=0, quote="Oona", origin="peer")
        assert (told["state"], told["refusal"]["code"]) == ("refused", "untrusted_source")


async def test_a_relevance_of_what_was_learned_already_is_refused_as_superseded(running: Running) -> None:
    turn = await running.ask("the harbour master is Oona")
    engram = await running.signal("engram", turn=turn["turn"], message=0, quote="Oona", origin="human")
    history = [{"role": "user", "content": "the harbour master is Oona"}]
    await running.ask("and?", history=history, learn={"wait": 60})
    told = await running.signal("relevance", engram=engram["id"], relevance=0.1)
    assert (told["state"], told["refusal"]["code"]) == ("refused", "superseded")


async def test_a_relevance_that_comes_before_its_engram_is_remembered(running: Running) -> None:
    turn = await running.ask("the harbour master is Oona")
    await running.signal("relevance", engram="later", relevance=0.5)
    await running.signal("engram", id="later", turn=turn["turn"], message=0, quote="Oona", origin="human")
    (row,) = (await running.get("/ledger", kind="lesson"))["rows"]
    assert row["body"]["weight_sum"] == 0.5 * row["body"]["rows"]
