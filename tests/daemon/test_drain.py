"""A service that is told to stop: what is open goes on for a while, nothing new is taken, nothing is lost."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from daemon.commands.child import Child
from daemon.commands.client import Refused, call
from store import chain, ledger
from store.database import Database
from store.ledger import Filter
from store.tables import LessonTable
from store.words import LedgerKind, LessonState
from tests.daemon.conftest import Running, Start
from tests.daemon.steps import one_by_one
from tests.daemon.test_crash import WAIT_SECONDS, Agent, check_books, rides, rows_of, wait_for
from tests.daemon.test_disconnects import asking, having
from tests.daemon.test_learning import corrected, go_on

Serve = Callable[..., AbstractContextManager[Child]]


@contextmanager
def reading(data_dir: Path) -> Iterator[Session]:
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            yield session
    finally:
        database.close()


def stop(child: Child) -> int:
    """Tell the service to stop; its exit status."""
    child.process.send_signal(signal.SIGTERM)
    return child.process.wait(timeout=WAIT_SECONDS)


async def test_while_it_stops_what_is_open_goes_on_and_what_is_new_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(slots=1, drain_seconds=30) as running:
        with one_by_one(monkeypatch) as steps:
            client = asking(running, "hello", stream=False)
            await steps.at(1)
            parts = running.service._parts
            assert parts is not None
            parts.requests.refuse_new()
            for path in ("/v1/messages", "/completion", "/signals"):
                async with running.http.post(running.url + path, json={}) as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (503, "30")
                    assert "stopping" in (await answer.json())["error"]["message"]
            async with running.http.get(f"{running.url}/health") as answer:
                assert answer.status == 503
            ending = asyncio.create_task(parts.requests.end())
            await running.until(having(lambda: not ending.done()))
            steps.go_on()
            status, _ = await client
            assert status == 200
            await ending


async def test_what_is_still_open_after_a_while_is_cut_off_and_recorded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(slots=1, drain_seconds=0.05) as running:
        with one_by_one(monkeypatch) as steps:
            client = asking(running, "hello", stream=True)
            steps.allow(3)
            await steps.at(4)
            parts = running.service._parts
            assert parts is not None
            parts.requests.refuse_new()
            ending = asyncio.create_task(parts.requests.end())
            await running.until(having(lambda: not running.service.lane._jobs.empty()))
            steps.go_on()
            await ending
        with pytest.raises(aiohttp.ClientError):
            await client
        rows = await running.store.read(turn_reasons)
    assert rows == ["cancelled"]


async def test_when_it_hurries_what_is_open_is_cut_off_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(slots=1, drain_seconds=1000) as running:
        with one_by_one(monkeypatch) as steps:
            client = asking(running, "hello", stream=True)
            steps.allow(3)
            await steps.at(4)
            parts = running.service._parts
            assert parts is not None
            parts.requests.refuse_new()
            ending = asyncio.create_task(parts.requests.end())
            running.service._hurry.set()
            await running.until(having(lambda: not running.service.lane._jobs.empty()))
            steps.go_on()
            await ending
        with pytest.raises(aiohttp.ClientError):
            await client
        assert await running.store.read(turn_reasons) == ["cancelled"]


async def test_once_it_stops_no_lesson_rides_any_more(running: Running) -> None:
    _, correction = await corrected(running)
    parts = running.service._parts
    assert parts is not None
    parts.boarding.close()
    assert (await go_on(running))["learn"]["lessons"] == []
    assert (await running.get(f"/signals/{correction['id']}"))["state"] == "planned"


def turn_reasons(session: Session) -> list[str]:
    rows = ledger.page(session, Filter(kind=LedgerKind.TURN)).rows
    return [str(row.body["finish_reason"]) for row in rows]


def test_open_turns_are_answered_to_their_end_and_the_service_ends_well(
    serve: Serve, tiny_chat: Path, tmp_path: Path
) -> None:
    many = 24
    flags = ("--model", str(tiny_chat), "--ctx", "256", "--slots", "1", "--drain-seconds", "100")
    with serve(*flags) as child, ThreadPoolExecutor(many) as clients:
        agent = Agent(child.url, "tiny-chat")
        open_ = [clients.submit(agent.ask, f"{i}: who lit the lighthouse?", max_tokens=150) for i in range(many)]
        wait_for(lambda: any(turn.done() for turn in open_))
        status = stop(child)
        turns = [turn.result() for turn in open_]
    assert status == 0
    assert {row["subject"] for row in rows_of(tmp_path / "data", LedgerKind.TURN)} == set(turns)
    with reading(tmp_path / "data") as session:
        assert chain.verify(session).why is None


def test_lessons_stop_between_two_segments_and_are_learned_once_after_the_next_start(
    serve: Serve, tiny_chat: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    flags = ("--model", str(tiny_chat), "--ctx", "256", "--idle-seconds", "0.01")
    with serve(*flags) as child:
        agent = Agent(child.url, "tiny-chat")
        agent.correct(agent.ask("who lit the lighthouse?"), 24)
        wait_for(lambda: rides(data_dir) >= 2)
        assert stop(child) == 0
    learned = len(rows_of(data_dir, LedgerKind.STEP))
    assert learned < 24, "nothing was left to learn"
    with reading(data_dir) as session:
        left = session.scalars(select(LessonTable.id).where(LessonTable.state == LessonState.RIDING)).all()
    assert not left, "a lesson was left as if it were on its way"
    check_books(data_dir, agent.acknowledged)
    with serve(*flags) as child:
        Agent(child.url, "tiny-chat").ask("who lit the lighthouse?")
        wait_for(lambda: len(rows_of(data_dir, LedgerKind.STEP)) == 24)
    states = check_books(data_dir, agent.acknowledged)
    assert set(states.values()) == {"learned"}


def test_told_a_second_time_the_service_ends_without_waiting_for_anyone(
    serve: Serve, tiny_chat: Path, tmp_path: Path
) -> None:
    many = 24
    flags = ("--model", str(tiny_chat), "--ctx", "512", "--slots", "1", "--drain-seconds", "1000")
    with serve(*flags) as child, ThreadPoolExecutor(many) as clients:
        agent = Agent(child.url, "tiny-chat")
        open_ = [clients.submit(agent.ask, f"{i}: who lit the lighthouse?", max_tokens=400) for i in range(many)]
        wait_for(lambda: any(turn.done() for turn in open_))
        child.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses_new(child))
        assert stop(child) == 0
        assert any(turn.exception() for turn in open_), "every turn was waited for"
    with reading(tmp_path / "data") as session:
        assert "cancelled" in turn_reasons(session)
        assert chain.verify(session).why is None


def refuses_new(child: Child) -> bool:
    try:
        call(child.url, "/health")
    except Refused as refused:
        return "stopping" in str(refused)
    return False


def test_a_service_with_nothing_to_do_stops_at_once(serve: Serve, tiny_chat: Path) -> None:
    with serve("--model", str(tiny_chat), "--ctx", "256", "--drain-seconds", "1000") as child:
        assert stop(child) == 0
        with pytest.raises(Refused):
            call(child.url, "/health")
