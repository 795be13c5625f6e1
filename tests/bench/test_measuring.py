"""What the benches measure with: growth, phases, tensors, turns in alternation."""

import dataclasses
import subprocess
import sys

import torch

from daemon.bench.measure import measured
from daemon.bench.phases import largest_tensors, phases
from daemon.bench.plan import GROWTH, TINY, Plan
from daemon.bench.sides import Sample, Side, alternate
from engine.engine import Engine
from engine.walk import Walk
from tests.engine.tiny import VOCABULARY, random_tokens, serve, start_walk

MIB = 2**20


def test_growth_is_the_peak_and_not_what_is_left() -> None:
    code = (
        "import torch; from daemon.bench.measure import measured; from daemon.bench.plan import GROWTH\n"
        "with measured(GROWTH) as meter: torch.ones(10 * 2**20); torch.ones(6 * 2**20)\n"
        "print(meter.sample.added_bytes)"
    )  # in a process of its own: a busy one's allocator may keep the first block when it is given back
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 39 * MIB < int(said) < 50 * MIB


def test_growth_counts_memory_that_was_used_and_given_back_before() -> None:
    for _ in range(3):
        with measured(GROWTH) as meter:
            torch.ones(40 * MIB // 4)
        assert meter.sample is not None
        assert meter.sample.added_bytes > 39 * MIB


def lesson(engine: Engine) -> Walk:
    tokens = random_tokens(30)
    if not engine.slots[0].tokens:
        serve(engine, 0, tokens[:20])
    return start_walk(engine, 0, tokens, 21)


def test_the_phases_of_a_lesson_are_all_its_segments(engine: Engine) -> None:
    walk, segments = lesson(engine), 1
    while walk.advance() is None:
        segments += 1
    found = phases(lambda: lesson(engine))
    assert sum(phase["segments"] for phase in found) == segments
    assert {"forward", "loss", "backward", "step"} <= {phase["name"] for phase in found}


def test_the_largest_tensors_of_a_lesson_come_largest_first(engine: Engine) -> None:
    found = largest_tensors(lambda: lesson(engine), 5)
    sizes = [kind["nbytes"] for kind in found]
    assert len(found) == 5
    assert sizes == sorted(sizes, reverse=True)
    logits = [kind for kind in found if kind["shape"] == f"9 × {VOCABULARY}"]
    assert {kind["nbytes"] for kind in logits} == {4 * 9 * VOCABULARY}
    assert {kind["phase"] for kind in logits} == {"loss"}


def test_sides_are_asked_in_turn_and_told_by_their_medians() -> None:
    asked: list[str] = []

    class Fake(Side):
        def __init__(self, name: str, seconds: list[float]) -> None:
            self.name, self._left = name, seconds

        def measure(self, what: str) -> Sample:
            asked.append(f"{what} {self.name}")
            return Sample(seconds=self._left.pop(), added_bytes=7, tokens=6)

    sides = [Fake("ours", [1.0, 9.0, 2.0]), Fake("theirs", [5.0, 4.0, 3.0])]
    medians = alternate(sides, ["lesson"], rounds=3, say=lambda _line: None)
    assert asked == ["lesson ours", "lesson theirs"] * 3
    assert dataclasses.astuple(medians["ours", "lesson"]) == (2.0, 7, 3.0)
    assert medians["theirs", "lesson"].seconds == 4.0


def test_a_plan_travels_as_json() -> None:
    plan = Plan(model="./somewhere", rounds=3, repack="both", sizes=TINY)
    assert Plan.from_json(plan.to_json()) == plan
