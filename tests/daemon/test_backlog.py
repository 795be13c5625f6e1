"""What waits to be settled: in which order it is taken, and who is told of its end."""

import asyncio

import pytest

from daemon.learning import precedence as precedence_room
from daemon.learning.backlog import Backlog
from daemon.learning.precedence import Precedence
from signals.records import Signal, parse_signal
from tests.daemon.conftest import AGENT
from tests.daemon.test_signal_batches import a_signal as body_of


def a_signal(identity: str, agent: str = AGENT) -> Signal:
    return parse_signal(body_of(identity, "action", turn="t", agent=agent))


def ids(taken: list[Signal]) -> list[str]:
    return [signal.id for signal in taken]


async def test_signals_are_taken_in_the_order_of_their_arrival() -> None:
    backlog = Backlog()
    backlog.add([a_signal("a"), a_signal("b", "bob")], waited_for=False)
    backlog.add([a_signal("c")], waited_for=False)
    assert "b" in backlog
    assert ids(backlog.take(2)) == ["a", "b"]
    assert (ids(backlog.take(2)), len(backlog)) == (["c"], 0)


async def test_what_a_sender_waits_for_goes_first_and_its_agents_others_before_it_and_the_rest_fills_up() -> None:
    backlog = Backlog()
    backlog.add([a_signal(f"b{i}", "bob") for i in range(3)], waited_for=False)
    backlog.add([a_signal("a1")], waited_for=False)
    backlog.add([a_signal("a2")], waited_for=True)
    taken = backlog.take(4)
    assert ids(taken) == ["a1", "a2", "b0", "b1"]
    backlog.settled(taken)
    backlog.add([a_signal("a3")], waited_for=False)
    assert ids(backlog.take(9)) == ["b2", "a3"]


async def test_who_waits_is_told_once_all_of_it_is_settled() -> None:
    backlog = Backlog()
    both = backlog.add([a_signal("a"), a_signal("b")], waited_for=False)
    again = backlog.add([a_signal("b")], waited_for=False)
    backlog.settled(backlog.take(1))
    assert not both.done()
    assert not again.done()
    backlog.settled(backlog.take(1))
    assert both.done()
    assert again.done()
    assert backlog.add([], waited_for=False).done()


async def test_planning_does_not_stand_aside_while_someone_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence_room, "MOST_SECONDS", 600)
    precedence = Precedence()
    aside = precedence.standing_aside()
    with precedence.going_first():
        planning = asyncio.create_task(asyncio.to_thread(next, aside))
        done, _ = await asyncio.wait([planning], timeout=0.05)
        assert not done
        with precedence.waiting():
            await planning
