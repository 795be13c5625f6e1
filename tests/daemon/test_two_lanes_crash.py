"""kill −9 of one of two lanes on one PostgreSQL database, while it learns: two processes, as they are run."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from daemon.commands.child import Child, serving_child
from daemon.commands.client import call
from store import chain, leases
from store.database import Database
from store.tables import LessonTable, StepTable
from store.words import LessonState
from tests.daemon.conftest import AGENT
from tests.daemon.test_crash import Agent, wait_for
from tests.postgresql import Server

Lane = Callable[[str], AbstractContextManager[Child]]


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_database()


@pytest.fixture
def lane(url: str, tiny_chat: Path, tmp_path: Path) -> Lane:
    """Start a lane in a process of its own."""

    def started(name: str) -> AbstractContextManager[Child]:
        flags = ["--database", url, "--model", str(tiny_chat), "--ctx", "256", "--idle-seconds", "0.01"]
        flags += ["--learn", AGENT, "--learn", "bob", "--lr", "1e-3", "--lease-seconds", "2"]
        return serving_child(tmp_path / name, flags)

    return started


def riding(session: Session) -> set[str]:
    """Whose lessons ride."""
    return set(session.scalars(select(LessonTable.agent).where(LessonTable.state == LessonState.RIDING)))


def kill_while_riding(url: str, child: Child, agent: str) -> None:
    """Kill a lane between the beginning of a ride and its step: nobody else writes while this looks."""
    with closing(Database.open(url, lane="watcher")) as database:

        def killed() -> bool:
            with database.write() as session:
                if agent not in riding(session):
                    return False
                child.process.kill()
                child.process.wait()
            return True

        wait_for(killed)


def steps_of_signals(url: str) -> Counter[str]:
    with closing(Database.open(url, read_only=True)) as database, database.read() as session:
        assert chain.verify(session).why is None
        return Counter(signal for made in session.scalars(select(StepTable.signals)) for signal in made)


def lane_of(url: str, agent: str) -> tuple[str, bool]:
    with closing(Database.open(url, read_only=True)) as database, database.read() as session:
        lease = leases.leases_of(session, [agent])[agent]
        return lease.lane, lease.live


def test_the_other_lane_goes_on_and_the_killed_one_takes_up_its_own(url: str, lane: Lane) -> None:
    with lane("other") as other:
        bob = Agent(other.url, "tiny-chat", name="bob")
        with lane("one") as one:
            ada = Agent(one.url, "tiny-chat")
            ada.correct(ada.ask("who lit the lighthouse?"), 12)
            kill_while_riding(url, one, AGENT)
        left = steps_of_signals(url)
        home, _ = lane_of(url, AGENT)
        wait_for(lambda: not lane_of(url, AGENT)[1])  # its lease runs out

        bob.correct(bob.ask("who lit the lighthouse?"), 3)
        wait_for(lambda: set(bob.acknowledged) <= steps_of_signals(url).keys())
        mine = {signal: count for signal, count in steps_of_signals(url).items() if signal in ada.acknowledged}
        assert mine == left, "another lane went on with a shadow that it has not"
        with closing(Database.open(url, read_only=True)) as database, database.read() as session:
            assert AGENT in riding(session), "another lane took up what is not its own"

        visitor = Agent(other.url, "tiny-chat")  # and what she says there waits for her own lane
        visitor.correct(visitor.ask("who lit the lighthouse?"), 1)
        assert call(other.url, f"/signals/{visitor.acknowledged[0]}")["state"] == "received"

        with lane("one") as one:
            Agent(one.url, "tiny-chat").ask("who lit the lighthouse?")  # serves the prefix again
            said = [*ada.acknowledged, *visitor.acknowledged]
            wait_for(lambda: set(said) <= steps_of_signals(url).keys())
    assert steps_of_signals(url) == dict.fromkeys([*said, *bob.acknowledged], 1)
    assert lane_of(url, AGENT) == (home, False)
