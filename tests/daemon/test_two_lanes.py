"""Two lanes on one PostgreSQL database, each with a data directory of its own."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from daemon.learning.stables import lora_lane_name
from signals.records import parse_signal
from store import leases, turns
from store.errors import AlreadyOpen, OtherModel
from store.records import LedgerRow
from store.tables import LessonTable, StepTable
from store.words import LessonState
from tests.daemon.conftest import AGENT, Running, Start
from tests.postgresql import Server

AGENTS = (AGENT, "bob")
ASKED = "who lit the lighthouse?"


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_database()


@pytest.fixture
def lanes(start: Start, url: str, tmp_path: Path) -> Any:
    """Start the lanes that are named, each in its own data directory."""

    @asynccontextmanager
    async def started(*names: str, **settings: Any) -> AsyncIterator[list[Running]]:
        chosen = {"database": url, "learn": AGENTS, "idle_seconds": 0.05} | settings
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(start(data_dir=tmp_path / name, **chosen)) for name in names]

    return started


def speaking(agent: str) -> dict[str, str]:
    return {"X-Ridealong-Agent": agent, "X-Ridealong-Context": "room"}


async def ask(lane: Running, agent: str = AGENT, **options: Any) -> Any:
    return await lane.ask(ASKED, who=speaking(agent), **options)


def correction(turn: Any, agent: str, *, prefix_tokens: int) -> dict[str, Any]:
    body = {"id": f"{turn}-{prefix_tokens}", "agent": agent, "context": "room", "kind": "correction"}
    return body | {"turn": turn, "reply": "glass bees", "prefix_tokens": prefix_tokens}


async def steps_of_signals(lane: Running) -> Counter[str]:
    def count(session: Session) -> Counter[str]:
        return Counter(signal for made in session.scalars(select(StepTable.signals)) for signal in made)

    return await lane.store.read(count)


async def holder(lanes: list[Running], agent: str = AGENT) -> str | None:
    lease = (await lanes[0].store.read(leases.leases_of, [agent])).get(agent)
    return None if lease is None else lease.lane


async def test_each_signal_is_trained_once_whoever_served_its_turn_and_took_it(lanes: Any) -> None:
    async with lanes("one", "other") as both:
        one, other = both
        served = [(agent, (await ask(lane, agent))["turn"]) for lane in both for agent in AGENTS]
        given = [correction(turn, agent, prefix_tokens=n) for agent, turn in served for n in (2, 3)]
        async with asyncio.TaskGroup() as tasks:
            puts = [tasks.create_task(lane.post("/signals", given)) for lane in (one, other, one, other)]
        statuses = Counter(put["status"] for task in puts for put in task.result()[1])
        assert statuses == {"new": len(given), "same": 3 * len(given)}
        status, refused = await other.post("/signals", given[0] | {"reply": "something else"})
        assert (status, refused["error"]["code"]) == (409, "signal_conflict")

        async def all_learned() -> bool:
            for lane in both:  # whichever has them: their prefix is served there
                for agent in AGENTS:
                    await ask(lane, agent)
            return len(await steps_of_signals(one)) == len(given)

        await one.until(all_learned, seconds=60)
        assert await steps_of_signals(one) == {signal["id"]: 1 for signal in given}
        for lane in both:
            assert (await lane.get("/ledger/verify"))["why"] is None
            assert {(await lane.get(f"/signals/{signal['id']}"))["state"] for signal in given} == {"learned"}


async def test_what_was_served_elsewhere_is_learned_once_the_agents_own_lane_serves_its_prefix(
    lanes: Any,
) -> None:
    async with lanes("one", "other") as (one, other):
        first = (await ask(one))["turn"]
        second = (await other.ask("who is Oona Brask?", who=speaking(AGENT)))["turn"]
        found = await one.store.read(turns.lanes_of, [first, second])
        assert found == {first: one.store.leases.lane, second: other.store.leases.lane}
        await one.post("/signals", correction(first, AGENT, prefix_tokens=2))
        await one.fate(f"{first}-2", "learned")
        body = {"id": "c2", "agent": AGENT, "context": "room", "kind": "correction", "turn": second}
        _, told = await other.post("/signals", body | {"reply": "glass bees"})
        assert (told["status"], told["refusal"]) == ("new", None)

        async def was_tried() -> bool:
            return 'lessons_total{code="",outcome="waiting"} 1.0' in await metrics(one)

        await one.until(was_tried)
        assert (await other.get("/signals/c2"))["state"] == "planned"
        await one.ask("who is Oona Brask?", who=speaking(AGENT))
        await other.fate("c2", "learned")
        assert await holder([one]) == one.store.leases.lane


async def metrics(lane: Running) -> str:
    async with lane.http.get(f"{lane.url}/metrics") as answer:
        return await answer.text()


async def test_what_tells_nothing_of_a_lane_is_for_the_one_that_took_it_while_nobody_has_the_agent(
    lanes: Any,
) -> None:
    async with lanes("one") as (one,):
        assert one.service._parts is not None
        leasing, lost = one.service._parts.leasing, correction("nobody's", AGENT, prefix_tokens=2)
        signal = parse_signal(lost)
        assert await leasing.mine([signal], heard=True) == []
        assert not one.store.leases.holds(AGENT)
        assert await leasing.mine([signal]) == [signal]


async def test_a_relevance_that_a_lane_took_where_nobody_learns_weighs_what_waits_at_the_other(
    lanes: Any,
) -> None:
    async with lanes("one", idle_seconds=3600) as (one,), lanes("other", learn=()) as (other,):
        turn = (await ask(one))["turn"]
        engram = {"origin": "human", "quote": "lighthouse", "relevance": 1.0}
        told = await one.signal("engram", id="e1", turn=turn, **engram)
        assert told["state"] == "planned"
        await other.signal("relevance", id="r1", engram="e1", relevance=0.25)
        await other.fate("r1", "applied")
        unlearned = (await ask(one))["turn"]
        await other.signal("verdict", id="v1", turn=unlearned, outcome="passed")
        await other.fate("v1", "applied")

        async def weighed() -> bool:
            heaviest_now: float = await one.store.read(heaviest, str(told["lesson"]))
            return heaviest_now == 0.25

        await one.until(weighed)


def heaviest(session: Session, lesson: str) -> float:
    row = session.get(LessonTable, lesson)
    assert row is not None
    return float(max(row.weights))


async def test_a_lease_that_is_lost_while_a_lesson_walks_commits_nothing_and_the_lesson_is_done_again(
    lanes: Any, url: str, postgresql: Server
) -> None:
    database, rides = url.split("/")[3].partition("?")[0], list[int]()
    async with lanes("one", idle_seconds=3600, lease_seconds=3) as (one,):

        def lose(rows: Sequence[LedgerRow]) -> None:
            """The ride has begun; what comes next is its step."""
            if any(row.body.get("state") == "riding" for row in rows):
                rides.append(rows[0].seq)
                if len(rides) == 1:
                    postgresql.say("UPDATE leases SET expires_at_us = 0", database=database)

        one.store.on_append(lose)
        turn = (await ask(one))["turn"]
        await one.post("/signals", correction(turn, AGENT, prefix_tokens=2))
        (lesson,) = (await ask(one, learn={"wait": 60}))["learn"]["lessons"]
        assert lesson["status"] == "waiting"
        assert not await steps_of_signals(one)

        async def learned() -> bool:  # once the lane has her again
            await ask(one, learn={"wait": 60})
            return len(await steps_of_signals(one)) == 1

        await one.until(learned)
        assert len(rides) == 2
        assert await steps_of_signals(one) == {f"{turn}-2": 1}
        assert (await one.get("/ledger/verify"))["why"] is None


async def test_an_agent_stays_with_the_lane_that_has_her_snapshots(lanes: Any, tmp_path: Path) -> None:
    async with lanes("one") as (one,):
        turn = (await ask(one))["turn"]
        await one.post("/signals", correction(turn, AGENT, prefix_tokens=2))
        await one.fate(f"{turn}-2", "learned")
        lane, head = one.store.leases.lane, (await one.get("/adapters"))[0]["shadow"]["sha"]
    async with lanes("other") as (other,):
        second = (await ask(other))["turn"]
        _, told = await other.post("/signals", correction(second, AGENT, prefix_tokens=3))
        assert told["state"] == "received"
        status, refused = await other.post(f"/adapters/{AGENT}/promote", {})
        assert status == 409
        assert f"belongs to no lane since {lane} let her go" in refused["error"]["message"]
        assert await holder([other]) == lane
    shutil.copytree(tmp_path / "one" / "adapters", tmp_path / "other" / "adapters", dirs_exist_ok=True)
    async with lanes("other") as (other,):  # copied there, she is taken when there is something to learn
        third = (await ask(other))["turn"]
        await other.post("/signals", correction(third, AGENT, prefix_tokens=4))
        await other.fate(f"{third}-4", "learned")
        await other.fate(f"{second}-3", "planned", "learned")
        assert await holder([other]) == other.store.leases.lane
        assert (await other.get("/ledger", kind="step"))["rows"][1]["body"]["shadow_before"] == head
        async with lanes("one") as (one,):  # and its old lane has lost her
            fourth = (await ask(one))["turn"]
            _, told = await one.post("/signals", correction(fourth, AGENT, prefix_tokens=5))
            assert told["state"] == "received"


async def test_what_waits_too_long_for_a_lane_that_is_away_is_ended_by_another(lanes: Any) -> None:
    async with lanes("one", "other", idle_seconds=3600) as (one, other):
        turn = (await ask(one))["turn"]
        waiting = correction(turn, AGENT, prefix_tokens=2)
        await one.post("/signals", waiting)
        bobs = correction((await ask(other, "bob"))["turn"], "bob", prefix_tokens=2)
        await other.post("/signals", bobs)
        await other.post("/learn", {"turn": turn, "reply": "bees", "agent": AGENT, "context": "room"})
        lane = one.store.leases.lane
    async with lanes("other", lesson_ttl_seconds=0.2, lease_seconds=0.3, idle_seconds=3600) as (other,):
        fate = await other.fate(waiting["id"], "refused")
        assert fate["refusal"]["code"] == "expired"
        assert "lane that the agent belongs to, which is away" in fate["refusal"]["message"]
        assert (await other.get(f"/signals/{bobs['id']}"))["state"] == "planned"
        assert (await other.get("/ledger/verify"))["why"] is None
        assert await holder([other]) == lane


async def test_an_adapter_that_another_lane_loaded_is_none_of_this_ones(lanes: Any) -> None:
    async with lanes("one") as (one,):
        turn = await one.store.read(turns.turn_of, (await ask(one))["turn"])
        assert one.service._parts is not None
        adapters = one.service._parts.turns._adapters
        here = await adapters.lane_name(replace(turn, adapter="lora:0:mine@0.5"))
        there = await adapters.lane_name(replace(turn, adapter="lora:0:mine@0.5", lane="lane-other"))
    assert here == lora_lane_name("lora:0:mine@0.5")
    assert there != here


async def test_what_is_promoted_on_one_lane_is_served_by_the_other_only_with_its_snapshot(
    lanes: Any, tmp_path: Path
) -> None:
    async with lanes("one", "other") as (one, other):
        assert (await ask(other))["adapter"] == "base"
        turn = (await ask(one))["turn"]
        await one.post("/signals", correction(turn, AGENT, prefix_tokens=2))
        await one.fate(f"{turn}-2", "learned")
        assert (await one.post(f"/adapters/{AGENT}/promote", {}))[0] == 200

        async def refused() -> bool:
            return bool((await ask(other))["status"] == 503)

        await other.until(refused)
        error = (await ask(other))["error"]
        assert error["code"] == "adapter_elsewhere"
        assert one.store.leases.lane in error["message"]
        shutil.copytree(tmp_path / "one" / "adapters", tmp_path / "other" / "adapters", dirs_exist_ok=True)
        assert (await ask(other))["adapter"] == f"{AGENT}@1"


async def test_a_policy_put_on_one_lane_counts_on_the_other(lanes: Any) -> None:
    async with lanes("one", "other") as (one, other):
        async with one.http.put(f"{one.url}/policy/agents/eve", json={"learn": True}) as answer:
            assert answer.status == 200

        async def known() -> bool:
            return "eve" in (await other.get("/policy"))["agents"]

        await other.until(known)


async def test_a_lane_of_another_model_is_refused_at_its_start(
    lanes: Any, tiny_chat: Path, tmp_path: Path
) -> None:
    tuned = tmp_path / "tuned"  # of the same shape, under the same name
    shutil.copytree(tiny_chat, tuned)
    weights = load_file(tuned / "model.safetensors")
    save_file(
        {name: value + 0.01 for name, value in weights.items()}, tuned / "model.safetensors", {"format": "pt"}
    )
    async with lanes("one") as (one,):
        turn = (await ask(one))["turn"]
        await one.post("/signals", correction(turn, AGENT, prefix_tokens=2))
        await one.fate(f"{turn}-2", "learned")
        with pytest.raises(OtherModel, match="serve the same model"):
            async with lanes("other", model=str(tuned)):
                pass
        with pytest.raises(OtherModel, match="has rank 8, this lane has 4"):
            async with lanes("other", rank=4):
                pass


async def test_a_data_directory_is_one_lanes(lanes: Any) -> None:
    async with lanes("one") as (one,):
        with pytest.raises(AlreadyOpen, match=f"lane {one.store.leases.lane} has the ledger open"):
            async with lanes("one"):
                pass
        name = one.store.leases.lane
    async with lanes("one") as (one,):
        assert one.store.leases.lane == name


async def test_a_start_takes_up_its_own_rides_and_leaves_those_of_others(lanes: Any) -> None:
    async with lanes("one", "other", idle_seconds=3600) as (one, other):
        made = [(await ask(one))["turn"], (await ask(other, "bob"))["turn"]]
        await one.post("/signals", correction(made[0], AGENT, prefix_tokens=2))
        await other.post("/signals", correction(made[1], "bob", prefix_tokens=2))
        await one.store.write(ride_all)
    async with lanes("one", idle_seconds=3600) as (one,):
        assert await one.store.read(states) == {AGENT: LessonState.PLANNED, "bob": LessonState.RIDING}


def ride_all(session: Session) -> None:
    session.execute(update(LessonTable).values(state=LessonState.RIDING))


def states(session: Session) -> dict[str, LessonState]:
    return {row.agent: row.state for row in session.scalars(select(LessonTable))}
