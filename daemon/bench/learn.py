"""`ridealong bench learn` and `memory`: a lesson against the ways to take the same step today, and a long prefix
against a short one.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daemon.bench.plan import GROWTH, LESSON, TIME, Plan, Say
from daemon.bench.report import MIB, Bar, Report, align, this_machine
from daemon.bench.sides import OURS, Medians, Side, alternate, started_sides


@dataclass(frozen=True, slots=True)
class Peer:
    """Another way to take the step, and the bars against it: shares of its time and of its added memory."""

    name: str
    kind: str
    most_seconds: float
    most_bytes: float
    needs: str | None = None


PEERS = (
    Peer("trl SFTTrainer", "trl", most_seconds=1 / 30, most_bytes=1 / 25, needs="trl"),
    Peer("PEFT, whole window", "whole-window", most_seconds=1 / 20, most_bytes=1 / 20),
    Peer("PEFT, cached prefix", "cached-prefix", most_seconds=1 / 1.5, most_bytes=1 / 2),
)
UNSERVED = "ridealong, run not served"
Found = Mapping[tuple[str, str], Medians]
"""Medians by side and work."""

MOST_GROWTH, MOST_SLOWDOWN = 1.10, 3.0
"""Only reading the prefix may grow with it: memory hardly, time with the share that reading has."""


def run_learn(plan: Plan, say: Say) -> Report:
    """A lesson of ours against each peer's step: seconds and added memory; and against one on an unserved run.

    The losses of the first steps are told too: the same tokens under the same model, they should be the same.
    """
    machine = this_machine()
    peers = [peer for peer in PEERS if _installed(peer)]
    skipped = tuple(
        f"{peer.name}: {peer.needs} is not installed; pip install 'ridealong[bench]'"
        for peer in PEERS
        if peer not in peers
    )
    kinds = {OURS: "lesson", UNSERVED: "unserved-lesson"} | {peer.name: peer.kind for peer in peers}
    with started_sides(kinds, dict.fromkeys(kinds, plan)) as sides:
        losses = "; ".join(f"{name} {side.ready['loss']:.4f}" for name, side in sides.items())
        say(f"loss of the first step: {losses}")
        medians = alternate(list(sides.values()), LESSON, rounds=plan.rounds, say=say)
        floor = float(sides[OURS].ask("floor")["seconds"])
        ready = sides[OURS].ready
    bars = [bar for peer in peers for bar in _against(peer, medians)]
    bars += [_time(f"time, {peer.name}, run not served", medians, (UNSERVED, peer.name)) for peer in peers]
    bars.append(
        Bar("time over its floor: operations at the packed matrix rate", medians[OURS, TIME].seconds, floor, "s")
    )
    return Report(
        "learn", machine, ready["model"], ready["repack"], plan.rounds, bars=tuple(bars), skipped=skipped
    )


def run_memory(plan: Plan, say: Say) -> Report:
    """A lesson after a long prefix against one after a short: seconds, added memory, and where both go."""
    machine, sizes = this_machine(), plan.sizes
    plans = {
        f"prefix {tokens:,}": replace(plan, sizes=replace(sizes, prefix_tokens=tokens))
        for tokens in (sizes.long_prefix_tokens, sizes.short_prefix_tokens)
    }
    long, short = plans
    with started_sides(dict.fromkeys(plans, "lesson"), plans) as sides:
        medians = alternate(list(sides.values()), LESSON, rounds=plan.rounds, say=say)
        for side in sides.values():
            say(f"\na lesson of {sizes.run_tokens} tokens after a {side.name}, by phase\n{_phases(side)}")
        say(f"\nits largest tensors, after a {long}\n{_tensors(sides[long])}\n")
        ready = sides[long].ready
    bars = (
        _growth(f"added memory, {long} over {short}", medians, (long, short), at_most=MOST_GROWTH),
        _time(f"time, {long} over {short}", medians, (long, short), at_most=MOST_SLOWDOWN),
    )
    return Report("memory", machine, ready["model"], ready["repack"], plan.rounds, bars=bars)


def _installed(peer: Peer) -> bool:
    return peer.needs is None or importlib.util.find_spec(peer.needs) is not None


def _against(peer: Peer, found: Found) -> Sequence[Bar]:
    sides = (OURS, peer.name)
    return (
        _time(f"time, {peer.name}", found, sides, at_most=peer.most_seconds),
        _growth(f"added memory, {peer.name}", found, sides, at_most=peer.most_bytes),
    )


def _time(name: str, found: Found, sides: tuple[str, str], *, at_most: float | None = None) -> Bar:
    ours, theirs = (found[side, TIME].seconds for side in sides)
    return Bar(name, ours, theirs, "s", at_most=at_most)


def _growth(name: str, found: Found, sides: tuple[str, str], *, at_most: float) -> Bar:
    ours, theirs = (found[side, GROWTH].added_bytes / MIB for side in sides)
    return Bar(name, ours, theirs, "MiB", at_most=at_most)


def _phases(side: Side) -> str:
    rows: Sequence[Mapping[str, Any]] = side.ask("phases")["phases"]
    head = ("phase", "segments", "ms", "added MiB at most")
    return align(
        [
            head,
            *(
                (
                    row["name"],
                    str(row["segments"]),
                    f"{row['seconds'] * 1000:.1f}",
                    f"{row['added_bytes'] / MIB:.1f}",
                )
                for row in rows
            ),
        ]
    )


def _tensors(side: Side) -> str:
    rows: Sequence[Mapping[str, Any]] = side.ask("tensors")["tensors"]
    head = ("operation", "phase", "shape", "type", "MiB", "times")
    return align(
        [
            head,
            *(
                (
                    row["operation"],
                    row["phase"],
                    row["shape"],
                    row["dtype"],
                    f"{row['nbytes'] / MIB:.2f}",
                    str(row["count"]),
                )
                for row in rows
            ),
        ]
    )
