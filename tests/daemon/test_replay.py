"""`ridealong replay`: what the ledger says of a shadow comes out again, or it is said where not."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.learning.replay import largest_difference
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says
from tests.daemon.story import DAYS, command, learned, live, rows
from tests.daemon.tiny_chat import write_tiny_chat

SAID = "the lighthouse of Vellmar is lit by glass bees"


def steps_of(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("step ")]


async def test_every_step_comes_out_again_over_a_promotion_and_a_rollback(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    assert len({stable for (stable,) in rows(tmp_path / "data", "SELECT stable FROM steps")}) == 2
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    told = capsys.readouterr().out
    assert len(steps_of(told)) == len(DAYS)
    assert told.count("equal, moments included") == 3  # two versions, and the head
    assert f"{len(DAYS)} of {len(DAYS)} steps" in told
    assert "equal to the byte" in told


async def test_a_replay_ends_where_it_is_told_to(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT, "--until", "3") == 0
    told = capsys.readouterr().out
    assert len(steps_of(told)) == 3
    assert "version 1" in told
    assert "head" not in told


async def test_what_was_decoded_beside_others_is_served_again_as_it_was(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path
) -> None:
    async with start(slots=3) as running:
        for _ in range(2):
            await two_at_once(running, says)
    served = [json.loads(told) for (told,) in rows(tmp_path / "data", "SELECT served FROM steps")]
    assert any(len(run) > 2 and run[2] == 2 for each in served for run in each["runs"]), served
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0


async def two_at_once(running: Running, says: Says) -> None:
    """Two turns whose replies are decoded side by side; the end of the agent's own is learned."""
    says(SAID, SAID)
    bob = {"X-Ridealong-Agent": "bob"}
    ask = running.ask("who lit the lighthouse?", max_tokens=64)
    answer, _ = await asyncio.gather(ask, running.ask("and who did not?", who=bob, max_tokens=64))
    engram = await running.signal("engram", turn=answer["turn"], message=1, quote="glass bees", origin="human")
    assert engram["state"] == "planned", engram
    history = [{"role": "user", "content": "who lit the lighthouse?"}, {"role": "assistant", "content": SAID}]
    says("hello")
    told = await running.ask("thank you", history=history, learn={"wait": 60})
    assert [lesson["status"] for lesson in told["learn"]["lessons"]] == ["learned"], told["learn"]


async def test_a_step_that_was_not_served_as_is_recorded_does_not_come_out_again(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    change(tmp_path / "data", "served", {"slot": 0, "runs": [[tokens_of(tmp_path / "data", 4), 1]]}, number=4)
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 1
    told = steps_of(capsys.readouterr().out)
    assert [line.endswith("equal") for line in told] == [True, True, True, False, True, True]


async def test_on_another_machine_adapters_are_held_to_a_small_difference(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    for number in range(1, len(DAYS) + 1):
        made_by = json.loads(rows(tmp_path / "data", f"SELECT made_by FROM steps WHERE number = {number}")[0][0])
        made_by["machine"]["processor"] = "another"
        change(tmp_path / "data", "made_by", made_by, number=number)
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
    assert "on another machine" in capsys.readouterr().out
    change(tmp_path / "data", "lr", 0.010001, number=1)
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT, "--until", "1") == 1
    assert "NOT shown" in capsys.readouterr().out
    assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 1
    assert "NOT equal: " in capsys.readouterr().out


def test_a_difference_is_relative_to_the_largest_value_of_its_tensor() -> None:
    one = {"a.lora_A.weight": torch.tensor([4.0, 0.0]), "optimizer.exp_avg.a.lora_A.weight": torch.tensor([1.0])}
    other = {name: value + 0.5 for name, value in one.items()}
    assert largest_difference(one, other) == 0.125


async def test_a_replay_changes_nothing_and_may_run_beside_a_service(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start() as running:
        says("nobody")
        answer = await running.ask("who lit the lighthouse?")
        await learned(running, "one", answer["turn"], "room", "glass bees")
        before = files(tmp_path / "data")
        assert command("replay", tmp_path / "data", tiny_chat, "--agent", AGENT) == 0
        assert files(tmp_path / "data") == before
    assert "equal to the byte" in capsys.readouterr().out


async def test_what_cannot_be_replayed_is_refused_by_name(
    start: Start, says: Says, tmp_path: Path, tiny_chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await live(start, says, tmp_path / "data")
    other = write_tiny_chat(tmp_path / "other-chat")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    for place, model, flags, why in (
        ("nowhere", tiny_chat, ["--agent", AGENT], "there is no ledger"),
        ("data", tiny_chat, ["--agent", "bob"], "there is no adapter of agent 'bob'"),
        ("data", tiny_chat, ["--agent", AGENT, "--until", "7"], "has steps 1 to 6: --until 7 is none of them"),
        ("data", other, ["--agent", AGENT], "were made for model"),
        ("data", tiny_chat, ["--agent", AGENT, "--rank", "3"], "were made for rank 8, rank 3 was given"),
    ):
        assert command("replay", tmp_path / place, model, *flags) == 1
        assert why in capsys.readouterr().err


def files(data_dir: Path) -> dict[str, bytes]:
    """The ledger and the adapters, byte by byte."""
    kept = [data_dir / "ledger.db", *(data_dir / "adapters").iterdir()]
    return {path.name: path.read_bytes() for path in kept}


def tokens_of(data_dir: Path, number: int) -> Any:
    return rows(data_dir, f"SELECT prefix_token_count FROM steps WHERE number = {number}")[0][0]


def change(data_dir: Path, column: str, value: Any, *, number: int) -> None:
    connection = sqlite3.connect(data_dir / "ledger.db")
    told = value if isinstance(value, float) else json.dumps(value)
    connection.execute(f"UPDATE steps SET {column} = ? WHERE number = ?", (told, number))
    connection.commit()
    connection.close()
