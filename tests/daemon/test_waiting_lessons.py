"""What becomes of lessons while they wait: held for a verdict, superseded, brought together, weighed again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import Session

from daemon.learning import learner
from daemon.learning.changes import Change, write_changes
from daemon.learning.rides import Pending, Rides
from signals.refusals import Refusal
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_learning import corrected, go_on, refusal

SAID = "the harbour master is called Oona Brask of Vellmar"


async def next_turn(running: Running) -> list[Any]:
    """The conversation goes on; what became of the lessons that rode."""
    answer = await running.ask("really?", history=[{"role": "user", "content": SAID}], learn={"wait": 60})
    lessons: list[Any] = answer["learn"]["lessons"]
    return lessons


async def state(running: Running, signal: Any) -> Any:
    told = await running.get(f"/signals/{signal['id']}")
    return told["state"], (told["refusal"] or {}).get("code")


async def test_an_action_that_waits_for_its_verdict_rides_once_that_says_passed(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    action = await running.signal("action", turn=turn, await_verdict=True)
    assert await next_turn(running) == []
    await running.signal("verdict", turn=turn, outcome="unknown")
    assert await next_turn(running) == []
    assert await state(running, action) == ("planned", None)
    verdict = await running.signal("verdict", turn=turn, outcome="passed")
    assert [lesson["status"] for lesson in await next_turn(running)] == ["learned"]
    rows = (await running.get("/ledger", kind="lesson"))["rows"]
    assert [row["body"]["freed_by"] for row in rows if "freed_by" in row["body"]] == [verdict["id"]]


async def test_an_action_that_waits_for_its_verdict_ends_with_one_that_says_failed(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    action = await running.signal("action", turn=turn, await_verdict=True)
    await running.signal("verdict", turn=turn, outcome="failed")
    assert await state(running, action) == ("refused", "failed_outcome")


async def test_a_verdict_that_came_before_is_not_waited_for(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    await running.signal("verdict", turn=turn, outcome="passed")
    await running.signal("engram", turn=turn, message=0, origin="human", await_verdict=True)
    assert [lesson["status"] for lesson in await next_turn(running)] == ["learned"]


async def test_what_waits_for_a_verdict_waits_on_after_a_restart(start: Start) -> None:
    async with start() as running:
        turn = (await running.ask(SAID))["turn"]
        action = await running.signal("action", turn=turn, await_verdict=True)
    async with start(idle_seconds=0.01) as running:
        await running.ask(SAID)
        assert await state(running, action) == ("planned", None)
        await running.signal("verdict", turn=turn, outcome="passed")
        assert (await running.fate(action["id"], "learned", "refused"))["state"] == "learned"


async def test_a_lesson_that_cannot_be_held_to_its_verdict_at_the_start_rides_nothing_and_waits_for_the_next_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as running:
        turn = (await running.ask(SAID))["turn"]
        action = await running.signal("action", turn=turn, await_verdict=True)
    with monkeypatch.context() as broken:
        broken.setattr("daemon.learning.settling.look_up", fails)
        async with start(idle_seconds=0.01) as running:
            assert await next_turn(running) == []
            assert await state(running, action) == ("planned", None)
    assert "could not be taken up" in caplog.text
    async with start(idle_seconds=0.01) as running:
        await running.ask(SAID)
        await running.signal("verdict", turn=turn, outcome="passed")
        assert (await running.fate(action["id"], "learned", "refused"))["state"] == "learned"


def fails(*_: object) -> None:
    raise OSError("the disk is gone")


async def test_a_lesson_rides_nothing_while_what_changes_it_is_written(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = list[bool]()

    def looking(session: Session, changes: Sequence[Change]) -> None:
        ready.extend(change.pending.may_ride for change in changes)
        write_changes(session, changes)

    monkeypatch.setattr("daemon.learning.settling.write_changes", looking)
    turn = (await running.ask(SAID))["turn"]
    engram = await running.signal("engram", turn=turn, message=0, origin="human")
    await running.signal("relevance", engram=engram["id"], relevance=0.5)
    assert ready == [False]
    assert [lesson["signals"] for lesson in await next_turn(running)] == [[engram["id"]]]


async def test_a_lesson_that_ends_is_out_of_reach_before_its_end_is_written(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = list[tuple[str, str]]()
    drop, write_refusals = Rides.drop, learner._refuse_lessons

    def dropping(rides: Rides, lesson: str) -> None:
        happened.append(("dropped", lesson))
        drop(rides, lesson)

    def writing(session: Session, refused: Sequence[tuple[Pending, Refusal]]) -> None:
        happened.extend(("written", pending.id) for pending, _ in refused)
        write_refusals(session, refused)

    monkeypatch.setattr(Rides, "drop", dropping)
    monkeypatch.setattr(learner, "_refuse_lessons", writing)
    turn = (await running.ask(SAID))["turn"]
    engram = await running.signal("engram", turn=turn, message=0, origin="human")
    await running.signal("relevance", engram=engram["id"], relevance=0.0)
    assert (await state(running, engram))[0] == "refused"
    (first, one), (then, same) = happened
    assert (first, then, one) == ("dropped", "written", same)


async def test_what_waits_for_a_verdict_expires_as_others_do(start: Start) -> None:
    async with start(lesson_ttl_seconds=0.001) as running:
        turn = (await running.ask(SAID))["turn"]
        action = await running.signal("action", turn=turn, await_verdict=True)
        await asyncio.sleep(0.01)
        await next_turn(running)
        told = await running.fate(action["id"], "refused")
    assert told["refusal"]["code"] == "expired"
    assert "a verdict of its turn" in told["refusal"]["message"]


async def test_a_later_correction_takes_the_place_of_one_that_has_not_ridden(running: Running) -> None:
    turn, first = await corrected(running)
    second = await running.signal("correction", turn=turn["turn"], reply="brass bees")
    assert await state(running, first) == ("refused", "superseded")
    assert [lesson["signals"] for lesson in (await go_on(running))["learn"]["lessons"]] == [[second["id"]]]


async def test_of_corrections_in_one_list_the_last_is_learned(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    turn = (await running.ask("who lit the lighthouse?"))["turn"]
    fields = {"agent": AGENT, "context": "room", "kind": "correction", "turn": turn}
    sent = [fields | {"id": f"c{i}", "reply": f"bees {i}"} for i in range(3)]
    await running.post("/signals", sent)
    await running.fate("c2", "planned")
    assert [await state(running, one) for one in sent] == [("refused", "superseded")] * 2 + [("planned", None)]
    assert "could not be settled" not in caplog.text


async def test_a_correction_that_has_ridden_is_followed_by_another(running: Running) -> None:
    turn, first = await corrected(running)
    await go_on(running)
    await running.signal("correction", turn=turn["turn"], reply="brass bees")
    assert await state(running, first) == ("learned", None)


async def test_corrections_go_first_and_then_what_waited_longest(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    point = {"turn": turn, "origin": "human"}
    old = await running.signal("engram", quote="harbour", **point)
    new = await running.signal("engram", quote="Vellmar", **point)
    correction = await running.signal("correction", turn=turn, reply="no")
    lessons = await next_turn(running)
    assert [lesson["signals"] for lesson in lessons] == [[correction["id"]], [old["id"]], [new["id"]]]
    assert [lesson["step"] for lesson in lessons] == [1, 2, 3]


async def overlapping(running: Running) -> tuple[Any, Any, Any]:
    turn = (await running.ask(SAID))["turn"]
    one = await running.signal("engram", turn=turn, quote="called Oona Brask", origin="human", relevance=0.75)
    other = await running.signal("engram", turn=turn, quote="Oona Brask of Vellmar", origin="peer")
    return turn, one, other


async def weights_by_source(running: Running, signal: Any) -> dict[str, set[float]]:
    told = await running.get(f"/signals/{signal['id']}/explain")
    weights: dict[str, set[float]] = {}
    for token in told["tokens"]:
        weights.setdefault(token["signal"], set()).add(token["weight"])
    return weights


async def test_engrams_that_overlap_are_one_lesson_and_each_token_has_the_highest_weight(running: Running) -> None:
    turn, one, other = await overlapping(running)
    third = await running.signal("engram", turn=turn, quote="harbour", origin="human")
    explained = await running.get(f"/signals/{one['id']}/explain")
    assert "called Oona Brask of Vellmar" in explained["text"]
    assert await weights_by_source(running, one) == {one["id"]: {0.75}, other["id"]: {0.5}}
    assert third["lesson"] != explained["lesson"]
    lessons = await next_turn(running)
    assert [lesson["signals"] for lesson in lessons] == [[one["id"], other["id"]], [third["id"]]]
    fates = [await running.get(f"/signals/{signal['id']}") for signal in (one, other)]
    assert [(fate["state"], fate["step"]) for fate in fates] == [("learned", 1)] * 2


async def test_an_engram_that_joins_two_lessons_makes_one_of_them(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    point = {"turn": turn, "origin": "human"}
    left = await running.signal("engram", quote="called Oona", **point)
    right = await running.signal("engram", quote="of Vellmar", **point)
    middle = await running.signal("engram", quote="Oona Brask of", relevance=0.5, **point)
    (lesson,) = await next_turn(running)
    assert (lesson["status"], set(lesson["signals"])) == ("learned", {left["id"], right["id"], middle["id"]})
    assert (await running.get("/ledger/verify"))["bad"] is None


async def test_engrams_of_one_list_that_overlap_are_one_lesson(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    fields = {"agent": AGENT, "context": "room", "kind": "engram", "turn": turn, "origin": "human"}
    await running.post(
        "/signals", [fields | {"id": "a", "quote": "called Oona"}, fields | {"id": "b", "quote": "Oona Brask"}]
    )
    lessons = {(await running.fate(name, "planned"))["lesson"] for name in "ab"}
    assert len(lessons) == 1


async def test_one_of_several_that_weighs_nothing_any_more_is_refused_alone(running: Running) -> None:
    _, one, other = await overlapping(running)
    await running.signal("relevance", engram=one["id"], relevance=0.0)
    assert await state(running, one) == ("refused", "bad_weight")
    assert await weights_by_source(running, other) == {other["id"]: {0.5}}
    told = await running.get(f"/signals/{other['id']}/explain")
    assert "called" not in told["text"]
    (lesson,) = await next_turn(running)
    assert (lesson["status"], lesson["signals"]) == ("learned", [other["id"]])


async def test_what_would_be_too_long_together_stands_by_itself(start: Start) -> None:
    async with start() as running:
        _, one, _ = await overlapping(running)
        tokens = len((await running.get(f"/signals/{one['id']}/explain"))["tokens"])
    async with start(max_lesson_tokens=tokens - 1) as running:
        _, one, other = await overlapping(running)
        assert one["lesson"] != other["lesson"]


async def test_a_lesson_with_more_tokens_than_one_may_have_is_refused(start: Start) -> None:
    async with start(max_lesson_tokens=3) as running:
        turn = (await running.ask(SAID))["turn"]
        assert await refusal(running, "engram", turn=turn, message=0, origin="human") == "lesson_too_long"


async def test_an_engram_tells_the_relevances_it_was_given_until_its_lesson_rides(running: Running) -> None:
    turn = (await running.ask(SAID))["turn"]
    engram = await running.signal("engram", turn=turn, quote="Oona", origin="tool", engram_kind="semantic")
    for relevance in (0.25, 0.75):
        await running.signal("relevance", engram=engram["id"], relevance=relevance)
    await next_turn(running)
    late = await running.signal("relevance", engram=engram["id"], relevance=0.5)
    assert (late["state"], late["refusal"]["code"]) == ("refused", "superseded")
    told = await running.get(f"/signals/{engram['id']}")
    assert [one["relevance"] for one in told["relevances"]] == [0.25, 0.75]
    assert (told["engram_kind"], told["await_verdict"], told["trust"]) == ("semantic", False, "authenticated")


@pytest.mark.parametrize("kind", ["episodic", "semantic", "procedural", "self-reflection"])
async def test_an_engram_is_of_any_kind_of_memory_and_by_itself_an_episode(running: Running, kind: str) -> None:
    turn = (await running.ask(SAID))["turn"]
    said = {} if kind == "episodic" else {"engram_kind": kind}
    engram = await running.signal("engram", turn=turn, quote="Oona", origin="self", **said)
    told = await running.get(f"/signals/{engram['id']}")
    assert (told["engram_kind"], told["trust"]) == (kind, "self")
