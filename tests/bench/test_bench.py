"""Every bench, run tiny so that it never rots: what it says is complete, adds up, and can fail."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from daemon.bench.learn import PEERS
from daemon.bench.report import Bar, Machine, Report
from daemon.commands.cli import main
from tests.daemon.tiny_chat import write_tiny_chat

Capture = pytest.CaptureFixture[str]
FACTS = {"bench", "machine", "cores", "torch", "model", "load", "repack", "rounds", "skipped", "bars"}
BAR = {"name", "ours", "theirs", "unit", "ratio", "bar", "holds"}
BOUNDED = {
    "learn": 2 * len(PEERS),
    "serve": 4,
    "interference": 6,
    "memory": 2,
    "start": 0,
    "ledger": 18,
    "signals": 8,
}
"""How many of a bench's figures have a bar, if nothing is skipped."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("tiny") / "tiny-chat")


@pytest.mark.parametrize("bench", ["learn", "serve", "interference", "memory", "start", "ledger", "signals"])
def test_a_bench_ends_in_one_line_of_json_whose_bars_add_up(bench: str, model: Path, capsys: Capture) -> None:
    assert main(["bench", bench, "--tiny", "--rounds", "1", "--model", str(model)]) == 0
    said = capsys.readouterr().out
    report = json.loads(said.splitlines()[-1])
    assert report.keys() == FACTS
    assert report["bench"] == bench
    assert len([bar for bar in report["bars"] if bar["bar"]]) + 2 * len(report["skipped"]) == BOUNDED[bench]
    for bar in report["bars"]:
        check_bar(bar)
        assert bar["name"] in said.rpartition("\n{")[0], "the table lacks a bar"
    if bench == "learn":
        check_losses(said)
    if bench == "memory":
        check_phases(said)


def check_bar(bar: dict[str, Any]) -> None:
    assert bar.keys() == BAR
    assert bar["theirs"] > 0
    assert bar["ratio"] == pytest.approx(bar["ours"] / bar["theirs"])
    match bar["bar"]:
        case {"at_most": bound}:
            assert bar["holds"] is (bar["ratio"] <= bound)
        case {"at_least": bound}:
            assert bar["holds"] is (bar["ratio"] >= bound)
        case None:
            assert bar["holds"] is None


def check_losses(said: str) -> None:
    """Every side learns the same tokens: the first step's loss is the same, but for trl's bf16."""
    line = next(line for line in said.splitlines() if line.startswith("loss of the first step"))
    losses = [float(loss) for loss in re.findall(r" (\d+\.\d{4})", line)]
    assert len(losses) == (5 if importlib.util.find_spec("trl") else 4)
    assert losses == pytest.approx([losses[0]] * len(losses), abs=2e-3)


def check_phases(said: str) -> None:
    for name in ("forward", "loss", "backward", "step"):
        assert len(re.findall(rf"^{name} +\d+ +[\d.]+ +[\d.]+$", said, re.MULTILINE)) == 2, name
    assert len(re.findall(r"^aten\S+ .* × .* float32 ", said, re.MULTILINE)) > 5


def test_without_trl_the_bench_says_so_and_measures_the_rest(
    model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trl" else find(name))
    assert main(["bench", "learn", "--tiny", "--rounds", "1", "--model", str(model)]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [line.split(":")[0] for line in report["skipped"]] == ["trl SFTTrainer"]
    assert not [bar for bar in report["bars"] if "trl" in bar["name"]]


def test_a_side_that_cannot_do_its_work_is_an_error_and_not_a_traceback(model: Path, capsys: Capture) -> None:
    given = ["bench", "learn", "--tiny", "--model", str(model), "--repack", "serve"]
    assert main(given) == 1
    assert "'ridealong' ended when asked to prepare" in capsys.readouterr().err


def test_an_option_that_a_bench_has_no_use_for_is_refused(capsys: Capture) -> None:
    assert main(["bench", "serve", "--tiny", "--top", "3"]) == 1
    assert "--top" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_an_error_and_not_a_traceback(capsys: Capture) -> None:
    assert main(["bench", "interference", "--tiny", "--model", "./nothing"]) == 1
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bar", "holds"),
    [
        (Bar("time", 1.0, 30.0, "s", at_most=1 / 30), True),
        (Bar("time", 1.1, 30.0, "s", at_most=1 / 30), False),
        (Bar("tokens", 12.0, 10.0, "tokens/s", at_least=1.2), True),
        (Bar("tokens", 11.9, 10.0, "tokens/s", at_least=1.2), False),
        (Bar("told", 1.0, 1000.0, "s"), None),
    ],
)
def test_a_bar_holds_on_its_own_side_of_its_bound(bar: Bar, holds: bool | None) -> None:
    assert bar.holds is holds


@pytest.mark.parametrize(("met", "status"), [(True, 0), (False, 1)])
def test_checking_fails_when_a_bar_does(
    met: bool, status: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = (Bar("speed", 2.0 if met else 1.0, 1.0, "tokens/s", at_least=1.5), Bar("told", 1.0, 9.0, "s"))
    report = Report("serve", Machine("none", 1, "none", 0.0), "none", "off", 1, bars=bars)
    monkeypatch.setattr("daemon.bench.command.BENCHES", {"serve": lambda _plan, _say: report})
    assert main(["bench", "serve"]) == 0
    assert main(["bench", "serve", "--check"]) == status
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["bars"][0]["holds"] is met
    assert ("not met: speed" in err) is not met
