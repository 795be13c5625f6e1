"""`ridealong ledger`, on the file and on a running service, which must say the same."""

import asyncio
import csv
import gzip
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from daemon.commands import ledger_export, ledger_source
from daemon.commands.cli import main
from store import ledger
from store.database import Database
from tests.daemon.conftest import AGENT, Running
from tests.daemon.test_cli import Capture, command
from tests.daemon.test_learning import corrected, go_on
from tests.daemon.test_ledger_stream import append, entries

AT_A_TERMINAL = (
    "import signal, sys; from daemon.commands.cli import main;"
    "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
)
"""`ridealong` as a terminal starts it: what is started in the background may have been told not to hear SIGINT."""


def written(data_dir: Path, count: int) -> tuple[str, ...]:
    """A ledger of so many rows; the flags that name it."""
    database = Database.open(data_dir / "ledger.db", create=True)
    with database.write() as session:
        ledger.append_all(session, entries(count))
        ledger.append_all(session, entries(1, "bob"))
    database.close()
    return ("--data-dir", str(data_dir))


async def test_file_and_service_say_the_same(running: Running, capsys: Capture, tmp_path: Path) -> None:
    await corrected(running)
    await go_on(running)
    places = (("--data-dir", str(tmp_path / "data")), ("--url", running.url))
    step = (await running.get("/ledger", kind="step"))["rows"][0]["seq"]
    for action in (
        ("ls", "--kind", "step", "--json"),
        ("ls", "--limit", "3"),
        ("show", str(step)),
        ("tail", "--limit", "2"),
        ("stats", "--agent", AGENT),
        ("verify",),
    ):
        said = []
        for place in places:
            assert await command("ledger", *action, *place) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
        assert said[0]
    assert await command("ledger", "stats", "--json", "--url", running.url) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["steps"] == 1
    assert await command("ledger", "stats", *places[0]) == 0
    assert capsys.readouterr().out.startswith("everyone: 2 turns; signals: 1 learned; refusals: none; 1 steps")


async def test_what_a_service_refuses_is_an_error(running: Running, capsys: Capture, tmp_path: Path) -> None:
    for action in (("show", "999"), ("ls", "--kind", "gossip"), ("verify", "--archive", "x")):
        assert await command("ledger", *action, "--url", running.url) == 1
    assert await command("ledger", "ls", "--url", "http://127.0.0.1:1") == 1
    assert "Traceback" not in capsys.readouterr().err


async def test_a_tail_follows_a_service_to_its_end(running: Running, capsys: Capture) -> None:
    await append(running.store, *entries(3))
    following = asyncio.create_task(
        command("ledger", "tail", "-f", "--json", "--limit", "1", "--url", running.url)
    )
    await append(running.store, *entries(3))
    said = ""

    async def followed() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return '"seq": 6' in said

    await running.until(followed)
    parts = running.service._parts
    assert parts is not None
    parts.feed.close()
    assert await following == 0
    rows = [json.loads(line)["seq"] for line in said.splitlines()]
    assert rows == list(range(rows[0], 7))


async def test_a_tail_follows_the_file_until_it_is_told_to_stop(tmp_path: Path) -> None:
    place = written(tmp_path, 2)
    given = ["-c", AT_A_TERMINAL, "ledger", "tail", "-f", "--json", *place, "--agent", AGENT]
    tail = await asyncio.create_subprocess_exec(sys.executable, *given, stdout=asyncio.subprocess.PIPE)
    assert tail.stdout is not None
    async with asyncio.timeout(60):
        assert [json.loads(await tail.stdout.readline())["seq"] for _ in range(2)] == [1, 2]
        written(tmp_path, 2)
        assert [json.loads(await tail.stdout.readline())["seq"] for _ in range(2)] == [4, 5]
        tail.send_signal(signal.SIGINT)
        assert await tail.wait() == 130


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_an_export_has_every_row_that_is_asked_for_in_order(
    form: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_source, "PAGE_ROWS", 7)
    monkeypatch.setattr(ledger_export, "GROUP_ROWS", 4)
    place, output = written(tmp_path, 30), tmp_path / "out"
    given = ("ledger", "export", "--format", form, "--output", str(output), *place, "--agent", AGENT)
    assert main(given) == 0
    assert capsys.readouterr().out.startswith("30 rows")
    rows = _read(form, output)
    assert [int(row["seq"]) for row in rows] == list(range(1, 31))
    assert main(("ledger", "ls", "--json", "--limit", "30", "--agent", AGENT, *place)) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    if form == "ndjson":
        assert rows == listed
    assert [row["sha"] for row in rows] == [row["sha"] for row in listed]
    bodies = [row["body"] if form == "ndjson" else json.loads(row["body"]) for row in rows]
    assert bodies == [row["body"] for row in listed]
    assert list(tmp_path.glob("*.writing")) == []


def _read(form: str, path: Path) -> list[dict[str, Any]]:
    if form == "ndjson":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if form == "csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


async def test_a_services_ledger_is_exported(running: Running, tmp_path: Path) -> None:
    await append(running.store, *entries(5))
    output = tmp_path / "out.ndjson"
    given = ("--format", "ndjson", "--output", str(output), "--url", running.url, "--kind", "policy")
    assert await command("ledger", "export", *given) == 0
    assert _read("ndjson", output) == (await running.get("/ledger", kind="policy"))["rows"]


def test_an_export_that_fails_leaves_no_file_and_names_what_to_do(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = written(tmp_path, 2)
    given = ("ledger", "export", "--format", "parquet", *place, "--output")
    assert main((*given, str(tmp_path / "nowhere" / "out"))) == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main((*given, str(tmp_path / "out"))) == 1
    assert "pip install 'ridealong[export]'" in capsys.readouterr().err
    assert list(tmp_path.glob("out*")) == []


def test_the_oldest_rows_are_archived_and_verified_from_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    place, file = written(tmp_path, 3), tmp_path / "old.ndjson.gz"
    given = ("ledger", "archive", *place, "--output", str(file), "--before")
    assert main((*given, "1999-01-01")) == 1
    assert "no row before" in capsys.readouterr().err
    assert main((*given, "yesterday")) == 1
    assert main((*given, "2999-01-01")) == 0
    assert "rows 1 to 4 are in" in capsys.readouterr().out
    with gzip.open(file, "rt") as lines:
        assert len(list(lines)) == 4
    assert main(("ledger", "verify", *place)) == 0
    assert "1 rows after 4 that are archived" in capsys.readouterr().out
    assert main(("ledger", "verify", *place, "--archive", str(file))) == 0
    assert "unbroken: 5 rows, head" in capsys.readouterr().out
    assert main(("ledger", "show", "2", *place)) == 1
    assert "is archived" in capsys.readouterr().err


async def test_no_service_may_run_while_rows_are_archived(
    running: Running, capsys: Capture, tmp_path: Path
) -> None:
    given = ("--data-dir", str(tmp_path / "data"), "--before", "2999-01-01", "--output", str(tmp_path / "x.gz"))
    assert await command("ledger", "archive", *given) == 1
    assert "stop that one first" in capsys.readouterr().err


def test_a_database_is_named_by_its_url(tmp_path: Path, capsys: Capture) -> None:
    written(tmp_path, 1)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert main(("ledger", "upgrade", "--database", url)) == 0
    assert "is at revision" in capsys.readouterr().out
    assert main(("ledger", "verify", "--database", url)) == 0
    assert main(("ledger", "upgrade", "--database", "mysql://host/db")) == 1
    assert "use a file, or a postgresql:// URL" in capsys.readouterr().err
