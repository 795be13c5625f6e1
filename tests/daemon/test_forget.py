"""`ridealong forget`: exact unlearning, no byte of the text left, and a ledger that still holds."""

import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.learning import forget as learning_forget
from store import chain
from store import forget as store_forget
from store.archive import archive
from store.database import Database
from tests.daemon.conftest import AGENT, Start
from tests.daemon.scripted import Says
from tests.daemon.story import DAYS, FIRST, LAST, adapters, command, forget, forgot, learned, live, rows
from tests.daemon.test_replay import change

SHADOWS = "SELECT number, shadow_before, shadow_after, snapshot FROM steps WHERE NOT forgotten ORDER BY number"


def shadows(data_dir: Path) -> list[tuple[object, ...]]:
    """The hashes of every step that is in an adapter, and its snapshot's name, without its number."""
    return [row[1:] for row in rows(data_dir, SHADOWS)]


def written(data_dir: Path, *texts: str) -> list[str]:
    """Which of those texts are in any of the data directory's files."""
    held = b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())
    return [text for text in texts if text.encode() in held]


def verified(data_dir: Path) -> str | None:
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            return chain.verify(session).why
    finally:
        database.close()


@pytest.mark.parametrize("left_out", [FIRST, "day-2", LAST])
async def test_a_signal_forgotten_leaves_the_shadow_of_an_agent_who_never_had_it_to_the_byte(
    left_out: str, start: Start, says: Says, tmp_path: Path, tiny_chat: Path
) -> None:
    await live(start, says, tmp_path / "data")
    await live(start, says, tmp_path / "twin", without=(left_out,))
    before = adapters(tmp_path / "data")
    assert forget(tmp_path / "data", tiny_chat, "--signal", left_out) == 0
    after, twin = adapters(tmp_path / "data"), adapters(tmp_path / "twin")
    assert [row[:3] for row in after] == [row[:3] for row in twin]
    assert shadows(tmp_path / "data") == shadows(tmp_path / "twin")
    assert snapshots(tmp_path / "data") == {row[2] for row in after}
    (told,) = forgot(tmp_path / "data")
    heads = [next(row[1] for row in kept if row[0] is None) for kept in (before, after)]
    assert heads[0] != heads[1]
    assert [told["shadow_before"], told["shadow_after"]] == heads
    assert (told["asked"], told["steps_left_out"], told["exact"]) == ("signal", 1, True)
    assert bool(told["versions"]) == (left_out != LAST), "a version made of it is rebuilt, one made before is not"
    assert verified(tmp_path / "data") is None


async def test_what_was_forgotten_is_in_no_file_and_what_is_left_comes_out_again(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path
) -> None:
    await live(start, says, tmp_path / "data")
    kept, gone = (
        ["glass bees", "Oona Brask", "who lit the lighthouse"],
        ["old copper lamps", "what is in the cellar"],
    )
    assert written(tmp_path / "data", *kept, *gone) == [*kept, *gone]
    assert forget(tmp_path / "data", tiny_chat, "--context", "cellar") == 0
    assert written(tmp_path / "data", *kept, *gone) == kept
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert forget(tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert written(tmp_path / "data", *kept, *gone) == []
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert len({row[1] for row in adapters(tmp_path / "data")}) == 1, "every version is the first one again"
    assert [told["steps_left_out"] for told in forgot(tmp_path / "data")] == [3, 3]
    tokens = "SELECT hex(tokens) || hex(targets) || hex(weights) FROM "
    told = {row[0].strip("0") for table in ("steps", "lessons") for row in rows(tmp_path / "data", tokens + table)}
    assert told == {""}
    assert verified(tmp_path / "data") is None


async def test_forgetting_one_thing_after_another_is_forgetting_both(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path
) -> None:
    await live(start, says, tmp_path / "data")
    await live(start, says, tmp_path / "twin", without=("day-1", "day-4"))
    for signal in ("day-4", "day-1"):
        assert forget(tmp_path / "data", tiny_chat, "--signal", signal) == 0
    assert shadows(tmp_path / "data") == shadows(tmp_path / "twin")
    assert [row[:3] for row in adapters(tmp_path / "data")] == [row[:3] for row in adapters(tmp_path / "twin")]


async def test_the_service_goes_on_and_a_signal_that_was_forgotten_trains_no_more(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    turn = rows(tmp_path / "data", "SELECT turn FROM signals WHERE id = 'day-0'")[0][0]
    other = rows(tmp_path / "data", "SELECT turn FROM signals WHERE id = 'day-1'")[0][0]
    assert forget(tmp_path / "data", tiny_chat, "--signal", FIRST) == 0
    assert forget(tmp_path / "data", tiny_chat, "--context", "cellar") == 0
    async with start(data_dir=tmp_path / "data", slots=3) as running:
        who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
        again = {"id": FIRST, "turn": turn, "reply": DAYS[0][3], "wait": 60}
        status, answer = await running.post("/learn", again, **who)
        assert (status, answer["refusal"]["code"]) == (200, "forgotten"), answer
        assert (await running.post("/learn", again | {"reply": "else"}, **who))[0] == 409
        fate = await running.signal("correction", context="cellar", turn=other, reply="anything")
        assert fate["refusal"]["code"] == "turn_unknown"
        answer = await running.ask("who lit the lighthouse?")
        assert answer["adapter"] == f"{AGENT}@1"
        await learned(running, "new", answer["turn"], "room", "nobody at all")
    capsys.readouterr()
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert "version 1" in capsys.readouterr().out


async def test_what_waits_is_refused_and_what_taught_nothing_needs_no_model(
    start: Start, says: Says, tmp_path: Path
) -> None:
    async with start(data_dir=tmp_path / "data") as running:
        says("nobody")
        turn = (await running.ask("who lit the lighthouse?"))["turn"]
        waits = await running.signal("correction", turn=turn, reply="glass bees")
        refused = await running.signal("correction", turn="turn-of-nobody", reply="copper lamps")
    assert forget(tmp_path / "data", tmp_path / "no-model", "--signal", refused["id"]) == 0
    assert forget(tmp_path / "data", tmp_path / "no-model", "--context", "room") == 0
    assert written(tmp_path / "data", "glass bees", "copper lamps", "who lit") == []
    async with start(data_dir=tmp_path / "data") as running:
        fate = await running.get(f"/signals/{waits['id']}")
        assert (fate["state"], fate["refusal"]["code"]) == ("refused", "forgotten")
        told = (await running.ask("who lit the lighthouse?", learn={"wait": 60}))["learn"]["lessons"]
        assert told == []


@pytest.mark.parametrize(
    ("owner", "name", "is_old"),
    [(store_forget, "_head_sha", True), (learning_forget, "sweep", False), (learning_forget, "scrub", False)],
)
async def test_a_crash_leaves_the_old_state_or_the_new_one_and_asking_again_ends_it(
    owner: Any,
    name: str,
    is_old: bool,
    start: Start,
    says: Says,
    tmp_path: Path,
    tiny_chat: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await live(start, says, tmp_path / "data")
    old, old_shadows = adapters(tmp_path / "data"), shadows(tmp_path / "data")
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, crash)
        with pytest.raises(Crash):
            forget(tmp_path / "data", tiny_chat, "--context", "cellar")
    assert (adapters(tmp_path / "data") == old) is is_old
    assert (shadows(tmp_path / "data") == old_shadows) is is_old
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert forget(tmp_path / "data", tiny_chat, "--context", "cellar") == 0
    assert len(forgot(tmp_path / "data")) == 1
    assert written(tmp_path / "data", "old copper lamps", "what is in the cellar") == []
    assert snapshots(tmp_path / "data") == {row[2] for row in adapters(tmp_path / "data")}
    async with start(data_dir=tmp_path / "data", slots=3) as running:
        assert (await running.ask("who lit the lighthouse?"))["adapter"] == f"{AGENT}@1"


def snapshots(data_dir: Path) -> set[str]:
    return {f"adapters/{path.name}" for path in (data_dir / "adapters").iterdir()}


class Crash(BaseException):
    """The process ends here."""


def crash(*_args: object, **_kwargs: object) -> None:
    raise Crash


@pytest.mark.parametrize("archived", [False, True])
async def test_exports_of_what_is_no_more_are_removed_and_no_others(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, archived: bool
) -> None:
    await live(start, says, tmp_path / "data")
    exports = tmp_path / "data" / "exports"
    async with start(data_dir=tmp_path / "data", slots=3) as running:
        for name, version in (("kept", 1), ("gone", None), ("notes", None)):
            asked = {"directory": name, "version": version}
            assert (await running.post(f"/adapters/{AGENT}/export", asked))[0] == 200
    (exports / "notes" / "mine.txt").write_text("mine")
    if archived:
        with closing(Database.open(tmp_path / "data" / "ledger.db")) as database:
            archive(database, tmp_path / "old.ndjson.gz", before_us=2**62)
    assert forget(tmp_path / "data", tiny_chat, "--signal", LAST) == 0
    assert {str(path.relative_to(exports)) for path in exports.rglob("*")} == {
        *("kept", "kept/adapter_config.json", "kept/adapter_model.safetensors", "notes", "notes/mine.txt")
    }


async def test_nothing_is_forgotten_before_that_is_sure_and_a_dry_run_says_what_would_be(
    start: Start,
    says: Says,
    tmp_path: Path,
    tiny_chat: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with start(data_dir=tmp_path / "data") as running:
        says("nobody")
        turn = (await running.ask("who lit the lighthouse?"))["turn"]
        await learned(running, "one", turn, "room", "glass bees")
        asked = ("forget", tmp_path / "data", tiny_chat, "--agent", AGENT)
        assert command(*asked, "--dry-run") == 0
        assert "1 turns, 1 signals and 1 lessons, and 1 steps" in capsys.readouterr().out
    for typed, is_terminal in (("y\n", False), ("n\n", True), ("", True)):
        monkeypatch.setattr("sys.stdin", Typed(typed, is_terminal=is_terminal))
        assert command(*asked) == 1
        assert "give --yes" in capsys.readouterr().err
    assert forgot(tmp_path / "data") == []
    monkeypatch.setattr("sys.stdin", Typed("y\n", is_terminal=True))
    assert command(*asked) == 0
    assert len(forgot(tmp_path / "data")) == 1


class Typed(io.StringIO):
    """What somebody types, at a terminal or into a pipe."""

    def __init__(self, text: str, *, is_terminal: bool) -> None:
        super().__init__(text)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


async def test_nothing_is_forgotten_where_what_came_before_does_not_come_out_again(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    before = adapters(tmp_path / "data")
    change(tmp_path / "data", "lr", 0.02, number=1)
    assert forget(tmp_path / "data", tiny_chat, "--signal", LAST) == 1
    assert "step 1 of ada comes before all that is to be forgotten" in capsys.readouterr().err
    assert (adapters(tmp_path / "data"), forgot(tmp_path / "data")) == (before, [])


async def test_of_steps_that_cannot_be_taken_again_all_are_forgotten_or_none(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as connection:
        connection.execute("UPDATE steps SET stable = 'lora:0:mine@0.5' WHERE number = 2")
    connection.close()
    assert forget(tmp_path / "data", tiny_chat, "--signal", LAST) == 1
    assert "lora:0:mine@0.5, whose tensors the ledger has not" in capsys.readouterr().err
    assert forgot(tmp_path / "data") == []
    assert forget(tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert len({row[1] for row in adapters(tmp_path / "data")}) == 1


async def test_while_a_service_runs_nothing_is_forgotten(
    start: Start, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start(data_dir=tmp_path / "data"):
        assert forget(tmp_path / "data", tiny_chat, "--agent", AGENT) == 1
    assert "open for writing" in capsys.readouterr().err


async def test_what_cannot_be_forgotten_is_refused_by_name(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start(data_dir=tmp_path / "data") as running:
        says("nobody")
        turn = (await running.ask("who lit the lighthouse?"))["turn"]
        engram = await running.signal("engram", turn=turn, message=0, quote="lighthouse", origin="human")
        weigher = await running.signal("relevance", engram=engram["id"], relevance=0.5)
    assert forget(tmp_path / "data", tiny_chat, "--signal", weigher["id"]) == 1
    assert f"forget what it weighs ({engram['id']})" in capsys.readouterr().err
    for flags in (["--signal", "nobodys"], ["--context", "nowhere"], ["--agent", "nobody"]):
        assert forget(tmp_path / "data", tiny_chat, *flags) == 1
        assert f"there is no {flags[0][2:]} {flags[1]!r}" in capsys.readouterr().err
    for wrong in ([], ["--signal", "one", "--agent", AGENT]):
        assert forget(tmp_path / "data", tiny_chat, *wrong) == 1
        assert "say what to forget" in capsys.readouterr().err
    assert forgot(tmp_path / "data") == []


async def test_what_was_forgotten_before_is_not_told_again(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    for _ in range(2):
        assert forget(tmp_path / "data", tiny_chat, "--context", "cellar") == 0
    assert "nothing of it is left" in capsys.readouterr().out
    assert len(forgot(tmp_path / "data")) == 1
