"""From a signal to a step, with the ledger in PostgreSQL."""

from pathlib import Path

from sqlalchemy import func, select, text

from store import chain
from store.database import Database
from store.store import Store
from store.tables import SignalTable, StepTable
from tests.daemon.conftest import AGENT, Start
from tests.daemon.story import command, forget
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


async def test_what_is_forgotten_is_gone_from_its_tables_too(
    start: Start, postgresql: Server, tmp_path: Path, tiny_chat: Path
) -> None:
    url = postgresql.new_database()
    flags = ("--database", url, "--agent", AGENT)
    async with start(database=url) as running:
        await corrected(running)
        await go_on(running)
        assert forget(tmp_path / "data", tiny_chat, *flags) == 1, "the service is open"
    before = files_of(url)
    assert command("replay", tmp_path / "data", tiny_chat, *flags) == 0
    assert forget(tmp_path / "data", tiny_chat, *flags) == 0
    assert not before & files_of(url), "rows that are gone are in the old files only"
    assert command("replay", tmp_path / "data", tiny_chat, *flags) == 0
    with Store.open(url, read_only=True) as store:
        assert await store.read(lambda session: session.scalars(select(SignalTable.body)).all()) == [None]
        assert (await store.read(chain.verify)).why is None


def files_of(url: str) -> set[int]:
    """The files of the tables that hold text."""
    database = Database.open(url, read_only=True)
    names = "'turns', 'signals', 'lessons', 'steps'"
    try:
        with database.read() as session:
            found = session.execute(text(f"SELECT relfilenode FROM pg_class WHERE relname IN ({names})"))
            return {row[0] for row in found}
    finally:
        database.close()
