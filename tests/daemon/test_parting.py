"""A lesson of several signals, one of them forgotten: it is learned again as the others' alone, or not at all."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from store import signals
from store.database import Database
from tests.daemon.conftest import Running, Start
from tests.daemon.story import adapters, forget, forgot, learned, rows

SAID = "the harbour master is called Oona Brask of Vellmar"
ENGRAMS = {
    "one": {"quote": "harbour master is called", "relevance": 0.5},
    "two": {"quote": "master is called Oona Brask", "relevance": 1.0},
    "three": {"quote": "called Oona", "relevance": 0.75},
}
LESSONS = "SELECT prefix_token_count, hex(tokens), hex(targets), hex(weights) FROM lessons WHERE state = 'planned'"


async def notice(running: Running, *names: str) -> None:
    """A turn, and engrams of it that overlap."""
    turn = (await running.ask(SAID))["turn"]
    for name in names:
        told = await running.signal("engram", id=name, turn=turn, origin="human", **ENGRAMS[name])
        assert told["state"] == "planned", told


async def live(start: Start, data_dir: Path, *names: str) -> None:
    """Engrams that overlap are learned, and something else after them."""
    async with start(data_dir=data_dir) as running:
        await notice(running, *names)
        history = [{"role": "user", "content": SAID}]
        answer = await running.ask("really?", history=history, learn={"wait": 60})
        assert [lesson["signals"] for lesson in answer["learn"]["lessons"]] == ([[*names]] if names else [])
        await learned(running, "later", answer["turn"], "room", "glass bees")


@pytest.mark.parametrize("gone", ["one", "two", "three"])
async def test_a_lesson_without_one_of_its_signals_is_that_of_an_agent_who_never_had_it_to_the_byte(
    gone: str, start: Start, tmp_path: Path, tiny_chat: Path
) -> None:
    left = [name for name in ENGRAMS if name != gone]
    await live(start, tmp_path / "data", *ENGRAMS)
    await live(start, tmp_path / "twin", *left)
    before = adapters(tmp_path / "data")
    assert forget(tmp_path / "data", tiny_chat, "--signal", gone) == 0
    assert adapters(tmp_path / "data") == adapters(tmp_path / "twin")
    assert (adapters(tmp_path / "data") == before) is (gone == "three"), (
        "what others say too is learned all the same"
    )
    (told,) = forgot(tmp_path / "data")
    assert (told["lessons_parted"], told["lessons_dropped"], told["steps_left_out"]) == (1, 0, 0)
    makers = "SELECT signals FROM steps ORDER BY number"
    assert rows(tmp_path / "data", makers) == rows(tmp_path / "twin", makers)
    states = dict(rows(tmp_path / "data", "SELECT id, state FROM signals"))
    assert [states[name] for name in (*left, gone)] == ["learned", "learned", "refused"]
    assert body_of(tmp_path / "data", gone) is None
    assert all(body_of(tmp_path / "data", name) for name in left)


async def test_a_lesson_that_waits_goes_on_waiting_without_one_of_its_signals(
    start: Start, tmp_path: Path, tiny_chat: Path
) -> None:
    for place, names in (("data", tuple(ENGRAMS)), ("twin", ("two", "three"))):
        async with start(data_dir=tmp_path / place) as running:
            await notice(running, *names)
    assert forget(tmp_path / "data", tiny_chat, "--signal", "one") == 0
    assert rows(tmp_path / "data", LESSONS) == rows(tmp_path / "twin", LESSONS)
    async with start(data_dir=tmp_path / "data") as running:
        told = {name: await running.get(f"/signals/{name}") for name in ENGRAMS}
        assert told["one"]["refusal"]["code"] == "forgotten"
        assert [told[name]["state"] for name in ("two", "three")] == ["planned", "planned"]


async def test_a_lesson_whose_signals_cannot_be_told_apart_ends_and_says_why(
    start: Start, tmp_path: Path, tiny_chat: Path
) -> None:
    await live(start, tmp_path / "data", "one", "two")
    await live(start, tmp_path / "twin")
    serve_no_more_than_the_prefix(tmp_path / "data")
    assert forget(tmp_path / "data", tiny_chat, "--signal", "one") == 0
    assert [row[:3] for row in adapters(tmp_path / "data")] == [row[:3] for row in adapters(tmp_path / "twin")]
    (told,) = forgot(tmp_path / "data")
    assert (told["lessons_parted"], told["lessons_dropped"], told["steps_left_out"]) == (0, 1, 1)
    state, code, message = rows(tmp_path / "data", "SELECT state, code, message FROM signals WHERE id = 'two'")[0]
    assert (state, code) == ("refused", "forgotten")
    assert "one lesson with signal one" in message
    assert body_of(tmp_path / "data", "two"), "nobody asked for its text to be erased"
    assert forget(tmp_path / "data", tiny_chat, "--signal", "two") == 0
    assert body_of(tmp_path / "data", "two") is None


async def test_what_another_lesson_took_in_is_erased_with_it(
    start: Start, tmp_path: Path, tiny_chat: Path
) -> None:
    async with start() as running:
        turn = (await running.ask(SAID))["turn"]
        for name, quote in (
            ("left", "harbour master"),
            ("right", "Oona Brask"),
            ("both", "master is called Oona"),
        ):
            await running.signal("engram", id=name, turn=turn, origin="human", quote=quote)
    taken_in = "SELECT hex(tokens) || hex(targets) FROM lessons WHERE state = 'refused'"
    assert [bool(row[0].strip("0")) for row in rows(tmp_path / "data", taken_in)] == [True]
    assert forget(tmp_path / "data", tiny_chat, "--signal", "right") == 0
    assert [bool(row[0].strip("0")) for row in rows(tmp_path / "data", taken_in)] == [False]
    assert rows(tmp_path / "data", "SELECT id FROM signals WHERE state = 'planned' ORDER BY id") == [
        ("both",),
        ("left",),
    ]


def body_of(data_dir: Path, signal: str) -> Any:
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            return signals.signals_of(session, [signal])[0].signal.body
    finally:
        database.close()


def serve_no_more_than_the_prefix(data_dir: Path) -> None:
    """Have the first step say that a pass ended with its prefix: how later rows were served is not known."""
    connection = sqlite3.connect(data_dir / "ledger.db")
    (rows_,) = connection.execute("SELECT prefix_token_count FROM steps WHERE number = 1").fetchone()
    served = json.dumps({"slot": 0, "runs": [[rows_, rows_]]})
    connection.execute("UPDATE steps SET served = ? WHERE number = 1", (served,))
    connection.commit()
    connection.close()
