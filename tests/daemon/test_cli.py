"""The commands, as a person runs them, against a service and its data directory."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from daemon import __version__
from daemon.commands.cli import main
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_learning import corrected, go_on

Capture = pytest.CaptureFixture[str]


async def command(*arguments: str) -> int:
    """Run a command beside the service that runs on this loop."""
    return await asyncio.to_thread(main, arguments)


def test_the_version_is_printed(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"ridealong {__version__}"


def test_a_setting_that_is_not_allowed_is_an_error_and_not_a_traceback(capsys: Capture) -> None:
    assert main(["serve", "--host", "0.0.0.0"]) == 1
    assert "loopback" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_an_error_and_not_a_traceback(capsys: Capture, tmp_path: Path) -> None:
    given = ["serve", "--model", str(tmp_path / "nothing"), "--data-dir", str(tmp_path), "--port", "0"]
    assert main(given) == 1
    assert "does not exist" in capsys.readouterr().err


async def test_the_ledger_is_listed_shown_followed_and_verified_beside_the_service(
    running: Running, capsys: Capture, tmp_path: Path
) -> None:
    await corrected(running)
    await go_on(running)
    data = ("--data-dir", str(tmp_path / "data"))
    assert await command("ledger", "ls", *data, "--kind", "step") == 0
    line = capsys.readouterr().out
    assert "step" in line
    seq = line.split()[0]
    assert await command("ledger", "show", seq, *data) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["step"]["targets"]
    assert await command("ledger", "tail", *data, "--json", "--limit", "2") == 0
    assert [json.loads(row)["kind"] for row in capsys.readouterr().out.splitlines()][-1] == "step"
    assert await command("ledger", "verify", *data) == 0
    assert "unbroken" in capsys.readouterr().out


async def test_what_the_ledger_has_not_is_an_error(running: Running, capsys: Capture, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    assert await command("ledger", "show", "999", *data) == 1
    assert await command("ledger", "ls", *data, "--kind", "gossip") == 1
    assert await command("ledger", "verify", "--data-dir", str(tmp_path / "elsewhere")) == 1
    assert "Traceback" not in capsys.readouterr().err


async def test_a_second_service_on_the_same_data_directory_is_refused(running: Running, tmp_path: Path) -> None:
    given = ["-m", "daemon.commands.cli", "serve", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    second = await asyncio.create_subprocess_exec(sys.executable, *given, stderr=asyncio.subprocess.PIPE)
    _, said = await second.communicate()
    assert second.returncode == 1
    assert b"is open for writing in process" in said


async def test_signals_are_sent_from_a_file_and_asked_after(
    running: Running, capsys: Capture, tmp_path: Path
) -> None:
    turn = (await running.ask())["turn"]
    signals = [
        {"id": f"v{i}", "agent": AGENT, "context": "room", "kind": "verdict", "turn": turn, "outcome": "passed"}
        for i in range(2)
    ]
    file = tmp_path / "signals.ndjson"
    file.write_text("\n".join(json.dumps(signal) for signal in signals))
    assert await command("signal", "--url", running.url, "--file", str(file)) == 0
    assert [signal["state"] for signal in json.loads(capsys.readouterr().out)] == ["applied", "applied"]
    assert await command("signal", "--url", running.url, "--show", "v1") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "v1"
    assert await command("signal", "--url", running.url, "--show", "nobody") == 1


async def test_adapters_are_listed_promoted_rolled_back_and_exported(start: Start, capsys: Capture) -> None:
    async with start() as running:
        await corrected(running)
        await go_on(running)
        url = ("adapters", "--url", running.url)
        assert await command(*url, "promote", AGENT) == 0
        assert await command(*url, "export", AGENT, "--directory", "mine") == 0
        exported = json.loads(capsys.readouterr().out.split("\n}\n")[1] + "}")
        assert (Path(exported["directory"]) / "adapter_model.safetensors").is_file()
        assert await command(*url, "rollback", AGENT, "--version", "0") == 0
        capsys.readouterr()
        assert await command(*url, "ls") == 0
        lines = capsys.readouterr().out.splitlines()
    assert "served" in next(line for line in lines if "@0" in line)
    assert "served" not in next(line for line in lines if "@1" in line)


async def test_a_signals_lesson_is_explained_token_by_token(running: Running, capsys: Capture) -> None:
    turn = (await running.ask("the harbour master is Oona"))["turn"]
    point = {"turn": turn, "message": 0, "quote": "Oona", "origin": "tool", "relevance": 0.5}
    engram = await running.signal("engram", **point)
    url = ("signal", "--url", running.url)
    assert await command(*url, "explain", engram["id"]) == 0
    first, *tokens = capsys.readouterr().out.splitlines()
    assert first == f"engram {engram['id']}: planned, lesson {engram['lesson']}"
    reason = f" 0.4      = relevance 0.5 × tool 0.8 × authenticated 1 × label 1, {engram['id']}"
    assert tokens
    assert all(line.endswith(reason) for line in tokens)
    assert await command("signal", "explain", engram["id"], "--json", "--url", running.url) == 0
    told = json.loads(capsys.readouterr().out)
    assert "Oona" in told["text"]
    assert "".join(token["text"] for token in told["tokens"]) == told["text"]
    assert await command(*url, "explain", "nobody") == 1


async def test_a_signal_without_a_lesson_is_explained_by_its_refusal(running: Running, capsys: Capture) -> None:
    refused = await running.signal("correction", turn="nobody", reply="x")
    assert await command("signal", "--url", running.url, "explain", refused["id"]) == 0
    assert "turn_unknown: Agent ada has no turn nobody" in capsys.readouterr().out
    assert (await running.get(f"/signals/{refused['id']}/explain"))["tokens"] == []


async def test_a_signal_command_that_asks_for_nothing_is_an_error(capsys: Capture) -> None:
    assert await command("signal") == 1
    assert "--file FILE" in capsys.readouterr().err
