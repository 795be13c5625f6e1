"""From a signal to a step, with the ledger in PostgreSQL."""

from sqlalchemy import func, select

from store.store import Store
from store.tables import StepTable
from tests.daemon.conftest import AGENT, Start
from tests.daemon.test_learning import corrected, go_on
from tests.postgresql import Server


async def test_a_lane_learns_promotes_and_starts_again_where_it_was(start: Start, postgresql: Server) -> None:
    url = postgresql.new_database()
    async with start(database=url) as running:
        turn, correction = await corrected(running)
        (lesson,) = (await go_on(running))["learn"]["lessons"]
        assert (lesson["status"], lesson["signals"]) == ("learned", [correction["id"]])
        await running.post(f"/adapters/{AGENT}/promote", {})
        waiting = await running.signal("action", turn=turn["turn"])
        assert waiting["state"] == "planned"
    async with start(database=url, idle_seconds=0.05) as running:
        assert (await running.ask("who lit the lighthouse?"))["adapter"] == f"{AGENT}@1"
        assert (await running.get(f"/signals/{correction['id']}"))["step"] == 1
        assert (await running.get(f"/signals/{waiting['id']}"))["state"] == "planned"
        assert (await running.get("/ledger/verify"))["why"] is None
        assert await steps(running.store) == 1


async def steps(store: Store) -> int:
    return await store.read(lambda session: session.scalar(select(func.count()).select_from(StepTable)) or 0)


async def test_a_list_is_settled_together_and_its_refusals_told(start: Start, postgresql: Server) -> None:
    async with start(database=postgresql.new_database()) as running:
        turn = (await running.ask())["turn"]
        who = {"agent": AGENT, "context": "room", "kind": "action"}
        given = [who | {"id": "good", "turn": turn}, who | {"id": "lost", "turn": "nobody's"}]
        assert (await running.post("/signals", given))[0] == 200
        await running.fate("good", "planned")
        assert (await running.fate("lost", "refused"))["refusal"]["code"] == "turn_unknown"
