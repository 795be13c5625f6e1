"""What a bench is asked to measure, and at which sizes. Plain values, which travel to child processes as JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Literal

Repack = Literal["off", "serve", "both", "auto"]
Say = Callable[[str], None]
"""Told, line by line, how a bench goes on."""

ROUNDS, TINY_ROUNDS = 5, 2
"""Alternations: five give a median that one disturbed round doesn't move; two show that a bench still runs."""

TIME, GROWTH = LESSON = ("lesson", "lesson's memory")
"""A lesson is done for its time and done for its added memory, which begin differently."""

TOP = 10
"""Tensors that `memory` lists unless told otherwise: enough to see what the peak is made of."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each bench does. The defaults are those of the bars."""

    prefix_tokens: int = 2048
    run_tokens: int = 64
    short_prefix_tokens: int = 512
    long_prefix_tokens: int = 8192
    prompt_tokens: int = 32
    decode_tokens: int = 96
    prefill_tokens: int = 1024
    block_tokens: int = 256
    """Tokens served in one block of the interference bench under unbroken load, at least."""
    turn_tokens: int = 64
    """Tokens of one turn of the interference bench where turns have pauses."""
    block_turns: int = 3
    """Turns with pauses in one block."""
    ledger_rows: int = 1_000_000
    signal_batches: int = 40
    """Batches of the signals bench in one run."""


TINY = Sizes(
    prefix_tokens=24,
    run_tokens=6,
    short_prefix_tokens=16,
    long_prefix_tokens=48,
    prompt_tokens=8,
    decode_tokens=6,
    prefill_tokens=32,
    block_tokens=12,
    turn_tokens=6,
    block_turns=2,
    ledger_rows=600,
    signal_batches=3,
)
"""Sizes at which a bench runs in seconds and measures nothing worth knowing: for the tests."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One bench's parameters. `repack` None leaves the engine's default; `model` None is the bundled one."""

    model: str | None = None
    rounds: int = ROUNDS
    repack: Repack | None = None
    top: int = TOP
    """How many of a lesson's largest tensors `memory` lists."""
    sizes: Sizes = Sizes()

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Plan":
        """The plan that `to_json` wrote."""
        given = json.loads(text)
        assert given.keys() == {field.name for field in fields(Plan)}, given
        return Plan(**given | {"sizes": Sizes(**given["sizes"])})
