"""kill −9 while a request's own lesson is on its way: its turn ends, and what it asked for is learned once."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daemon.commands.client import call
from store.words import LedgerKind
from tests.daemon.conftest import AGENT
from tests.daemon.test_crash import check_books, rows_of, wait_for

ASKED = {"labels": [{"message": 0, "start": 8, "end": 22}]}, {"reply": "It is made by glass bees."}


def ask(url: str, **options: Any) -> Any:
    """The same prompt, always."""
    body = {
        "model": "tiny-chat",
        "messages": [{"role": "user", "content": "who lit the lighthouse?"}],
        "metadata": {"agent": AGENT, "context": "room"},
        "max_tokens": 4,
    } | options
    return call(url, "/v1/chat/completions", body=json.dumps(body).encode())


def turn_ends(data_dir: Path) -> dict[str, str]:
    """How the ledger says that each turn ended."""
    rows = rows_of(data_dir, LedgerKind.TURN)
    assert len({row["subject"] for row in rows}) == len(rows), "a turn ended twice"
    return {row["subject"]: row["finish_reason"] for row in rows}


@pytest.mark.parametrize("state", ["planned", "riding"])
@pytest.mark.parametrize("learn", ASKED, ids=["labels", "reply"])
def test_what_a_request_asked_to_learn_is_learned_once_over_a_crash(
    serve: Callable[..., Any], tiny_chat: Path, tmp_path: Path, learn: dict[str, Any], state: str
) -> None:
    data_dir, flags = tmp_path / "data", ("--model", str(tiny_chat), "--idle-seconds", "3600", "--ctx", "256")
    with serve(*flags) as child, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask, child.url, learn=learn, max_tokens=200, temperature=1.5, seed=2)
        wait_for(lambda: state in {row.get("state") for row in rows_of(data_dir, LedgerKind.LESSON)})
        child.process.kill()
        child.process.wait()
        asking.exception()  # a reply's lesson may have been quicker than the kill
    with serve(*flags) as child:
        ends = turn_ends(data_dir)
        (cut,) = ends
        assert (ends[cut] == "failed") == ("labels" in learn), "labels' turn was open, a reply's had ended"
        ask(child.url, learn={"wait": 60})
        assert call(child.url, f"/signals/learn-{cut}")["state"] == "learned"
    assert check_books(data_dir, []) == {f"learn-{cut}": "learned"}
    assert len(turn_ends(data_dir)) == 2
