"""A day of lessons of every kind: replayed, every hash is equal; forgotten, the shadow is one that never saw it.

With `REPLAY_LESSONS` it is so many lessons on the bundled model (`make replay`), else a few on a tiny one.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from daemon.commands.cli import main
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import scripted
from tests.daemon.story import adapters, forgot, rows

ASKED = os.environ.get("REPLAY_LESSONS")
LESSONS = int(ASKED or 8)
KEPT = ("a brass key", "two wax candles", "the mate's old letter", "a coil of tarred rope", "glass bees")
MOST_MESSAGES = 10
"""After so many a conversation begins anew."""

SHADOWS = "SELECT shadow_before, shadow_after, snapshot FROM steps WHERE NOT forgotten ORDER BY number"


@pytest.mark.timeout(300 + 240 * bool(ASKED) + 60 * LESSONS)
async def test_lessons_are_replayed_to_the_byte_and_a_signal_forgotten_was_never_there(
    start: Start,
    tmp_path: Path,
    model_cache: Path,
    tiny_chat: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = {"model": None, "model_cache": model_cache, "ctx": 2048, "lr": 1e-4} if ASKED else {"ctx": 2048}
    flags = ["--model-cache", str(model_cache)] if ASKED else ["--model", str(tiny_chat)]
    data, twin, gone = tmp_path / "data", tmp_path / "twin", f"lesson-{LESSONS // 5}"
    for data_dir, without in ((data, None), (twin, gone)):
        async with start(data_dir=data_dir, slots=3, **model) as running:
            await Day(running, monkeypatch, without).live()
    kinds = Counter(kind for (kind,) in rows(data, "SELECT kind FROM lessons JOIN steps ON lesson = lessons.id"))
    tell(f"{kinds.total()} lessons ({dict(kinds)}) after prefixes served with {stables(data)} stable sets")
    began = time.perf_counter()
    assert main(["replay", "--data-dir", str(data), "--agent", AGENT, *flags]) == 0
    tell(f"replayed in {time.perf_counter() - began:.1f} s")
    assert (len(kinds), kinds.total()) == (3, LESSONS)
    began, before = time.perf_counter(), adapters(data)
    assert main(["forget", "--data-dir", str(data), "--signal", gone, "--yes", *flags]) == 0
    tell(f"forgotten in {time.perf_counter() - began:.1f} s: {forgot(data)[0]}")
    equal = sum(one == other for one, other in zip(rows(data, SHADOWS), rows(twin, SHADOWS), strict=True))
    tell(f"{equal} of {LESSONS - 1} steps have the hashes of the shadow that never saw {gone}")
    assert equal == LESSONS - 1
    assert [row[:3] for row in adapters(data)] == [row[:3] for row in adapters(twin)]
    changed = [one[1] != other[1] for one, other in zip(before, adapters(data), strict=True)]
    assert sorted(changed) == [False, True, True, True], "all but the version she began with had it in them"
    assert main(["replay", "--data-dir", str(data), "--agent", AGENT, *flags]) == 0
    assert main(["ledger", "verify", "--data-dir", str(data)]) == 0


class Day:
    """Two conversations, in which something is learned of every turn: once as a correction, once as an engram."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch, without: str | None) -> None:
        model = running.service._model
        assert model is not None
        self._running = running
        self._without = without
        self._model = model.name
        end = min(model.end_tokens)
        self._says = scripted(
            monkeypatch, lambda text: model.tokenizer.encode(text, add_special_tokens=False), end
        )
        self._talks: dict[str, list[dict[str, str]]] = {"room": [], "cellar": []}

    async def live(self) -> None:
        """Live it. Two versions are promoted on the way, and the first is gone back to."""
        for number in range(LESSONS):
            await self._learn(number)
            if number in (LESSONS // 4, LESSONS // 2):
                assert (await self._running.post(f"/adapters/{AGENT}/promote", {}))[0] == 200
            if number == 3 * LESSONS // 4:
                assert (await self._running.post(f"/adapters/{AGENT}/rollback", {"version": 1}))[0] == 200

    async def _learn(self, number: int) -> None:
        context, kept = ("room", "cellar")[number % 2], KEPT[number % len(KEPT)]
        if len(self._talks[context]) > MOST_MESSAGES:
            self._talks[context] = []
        asked = f"Box {number} has {kept} in it, remember. What is in box {number}?"
        answer = await self._ask(context, asked, f"Box {number} is empty.")
        match number % 3:
            case 0:
                signal = {"kind": "correction", "turn": answer["turn"], "reply": f"In box {number} is {kept}."}
            case 1:
                signal = {"kind": "engram", "turn": answer["turn"], "quote": f"{kept} in it", "origin": "human"}
            case _:
                signal = {"kind": "action", "turn": answer["turn"]}
        if f"lesson-{number}" != self._without:
            told = await self._running.signal(**signal, id=f"lesson-{number}", context=context)
            assert told["state"] == "planned", told
        answer = await self._ask(context, "Thank you.", "You are welcome.", learn={"wait": 60})
        learned = [lesson["status"] for lesson in answer["learn"]["lessons"]]
        assert learned == ([] if f"lesson-{number}" == self._without else ["learned"])

    async def _ask(self, context: str, asked: str, said: str, **options: Any) -> Any:
        self._says(said)
        who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": context}
        talk = self._talks[context]
        answer = await self._running.ask(asked, history=talk, who=who, model=self._model, max_tokens=64, **options)
        assert answer["status"] == 200, answer
        talk += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        return answer


def stables(data_dir: Path) -> int:
    return len({stable for (stable,) in rows(data_dir, "SELECT stable FROM steps")})


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
