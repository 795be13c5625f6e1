import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from store.chain import verify
from store.database import Database
from store.errors import Closed, Unknown
from store.signals import put_signals, received_signals
from store.store import Store
from store.turns import record_turn, turn_of
from tests.store.builders import a_signal, a_turn


@pytest.fixture
def store(place: str | Path) -> Iterator[Store]:
    with Store.open(place, create=True) as opened:
        yield opened


async def test_an_awaited_write_is_there_for_every_later_read(store: Store) -> None:
    await store.write(record_turn, a_turn())
    assert await store.read(turn_of, "t1") == a_turn()


async def test_writes_at_once_come_one_after_another_and_none_is_lost(store: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(store.write(put_signals, [a_signal(f"{number}.{n}") for n in range(3)]))
            tasks.create_task(store.read(received_signals))
    assert len(await store.read(received_signals)) == 60
    assert (await store.read(verify)).why is None


async def test_reads_go_on_while_a_write_is_open(store: Store) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow_write(session: Session) -> None:
        put_signals(session, [a_signal()])
        begun.set()
        assert may_end.wait(timeout=60)

    write = asyncio.create_task(store.write(slow_write))
    await asyncio.to_thread(begun.wait, 60)
    assert await store.read(received_signals) == []
    may_end.set()
    await write
    assert len(await store.read(received_signals)) == 1


async def test_writes_run_on_one_thread_that_is_not_the_loops(store: Store) -> None:
    def thread_name(_session: Session) -> str:
        return threading.current_thread().name

    names = {await store.write(thread_name) for _ in range(5)}
    assert names == {"store-writer_0"}


async def test_a_failed_write_is_raised_where_it_was_awaited_and_changes_nothing(store: Store) -> None:
    def record_and_fail(session: Session) -> None:
        record_turn(session, a_turn())
        turn_of(session, "nowhere")

    with pytest.raises(Unknown):
        await store.write(record_and_fail)
    with pytest.raises(Unknown):
        await store.read(turn_of, "t1")


async def test_closing_ends_what_was_asked_for_and_closes_again(store: Store, place: str | Path) -> None:
    begun = threading.Event()

    def begin_and_record(session: Session) -> None:
        begun.set()
        record_turn(session, a_turn())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.write(begin_and_record))
        tasks.create_task(store.write(put_signals, [a_signal()]))
        await asyncio.to_thread(begun.wait, 60)
        store.close()
        store.close()
    with pytest.raises(Closed):
        await store.read(received_signals)
    with closing(Database.open(place)) as again, again.read() as session:
        assert turn_of(session, "t1") == a_turn()
        assert len(received_signals(session)) == 1
