"""An agent's days in two contexts, the same each time: what is said and learned, a promotion, a rollback."""

import json
from pathlib import Path
from typing import Any

from daemon.commands.cli import main
from store.database import Database
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says

DAYS = (
    ("room", "who lit the lighthouse?", "nobody", "glass bees"),
    ("cellar", "what is in the cellar?", "a barrel", "old copper lamps"),
    ("room", "who is the harbour master?", "a stranger", "Oona Brask"),
    ("cellar", "is it dark?", "it is", "only at noon"),
    ("room", "and you?", "I am well", "I am a user of the lighthouse"),
    ("cellar", "thank you", "you are well", "hello to the harbour"),
)
PROMOTED_AFTER, ROLLED_BACK_AFTER = 2, 3
FIRST, LAST = "day-0", f"day-{len(DAYS) - 1}"


async def live(start: Start, says: Says, data_dir: Path, *, without: tuple[str, ...] = ()) -> None:
    """Live the days on a service of their own."""
    async with start(data_dir=data_dir, slots=3) as running:
        await days(running, says, without=without)


async def days(running: Running, says: Says, *, without: tuple[str, ...] = ()) -> None:
    """Live the days; what is learned on each has its id. Some may be left out."""
    talks: dict[str, list[dict[str, str]]] = {"room": [], "cellar": []}
    for day, (context, asked, said, better) in enumerate(DAYS):
        says(said)
        who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": context}
        answer = await running.ask(asked, history=talks[context], who=who)
        talks[context] += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        if f"day-{day}" not in without:
            await learned(running, f"day-{day}", answer["turn"], context, better)
        if day == PROMOTED_AFTER:
            assert (await running.post(f"/adapters/{AGENT}/promote", {}))[0] == 200
        if day == ROLLED_BACK_AFTER:
            assert (await running.post(f"/adapters/{AGENT}/rollback", {"version": 1}))[0] == 200


async def learned(running: Running, identity: str, turn: str, context: str, reply: str) -> None:
    body = {"id": identity, "turn": turn, "reply": reply, "wait": 60}
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": context}
    status, answer = await running.post("/learn", body, **who)
    assert (status, answer["status"]) == (200, "learned"), answer


def command(name: str, data_dir: Path, model: Path, *flags: str) -> int:
    """Run a command on a data directory; its exit status."""
    return main([name, "--data-dir", str(data_dir), "--model", str(model), *flags])


def rows(data_dir: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query finds in the ledger's file."""
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            return [tuple(row) for row in session.connection().exec_driver_sql(query)]
    finally:
        database.close()


def adapters(data_dir: Path) -> list[tuple[Any, ...]]:
    """Each of the agent's adapters: version, hash, the snapshot's name, which is a hash too, and the last step."""
    return rows(data_dir, "SELECT version, sha, snapshot, step_number FROM adapters ORDER BY version")


def forgot(data_dir: Path) -> list[dict[str, Any]]:
    """What the ledger tells of forgetting."""
    return [json.loads(body) for (body,) in rows(data_dir, "SELECT body FROM ledger WHERE kind = 'forgot'")]


def forget(data_dir: Path, model: Path, *flags: str) -> int:
    """Forget without being asked; the exit status."""
    return command("forget", data_dir, model, "--yes", *flags)
