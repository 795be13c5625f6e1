"""`ridealong bench interference`: what a turn notices of another agent's lessons, in time per token.

- Blocks alternate, with lessons and without. Each serves the same turn from the same prompt, token by token at the
  same positions, on a lane whose other slot holds the prefix that the lessons need.
- Unbroken load: one turn is served all the time, and a lesson always waits behind the one that walks. A block
  with lessons lasts until one of them is learned to its end; the block without serves as many tokens.
  What is measured is the duty: lessons wait for no pause here.
- Pauses: a turn, then as much idle time as it took, and so on; a lesson comes with each turn and should be learned
  by the end of the pause after it.
- A gap is the time between two tokens of a turn, as whoever reads them sees it.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from daemon.bench.measure import load, settings, text_tokens
from daemon.bench.plan import Plan, Say
from daemon.bench.report import Bar, Report, this_machine
from daemon.config import Settings
from engine.batch import Batch, serving_rows
from engine.duty import DutyMeter
from engine.engine import Engine
from engine.lane import Lane
from engine.orders import Event, LessonEnded, LessonOrder, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampling
from engine.slots import BASE
from engine.walk import LessonLearned
from engine.weights import LoadedModel

GREEDY = Sampling(temperature=0)
LEARNER, OTHER = 0, 1
"""The slot that holds the lessons' prefix, and the one that is served."""

MOST_P50, MOST_MEAN, MOST_P95_WITH_PAUSES = 1.03, 1.12, 1.10
GAP_STEPS, GAP_SECONDS = 2, 0.020
"""The longest gap there may be: two decode steps and 20 ms."""

MOST_BLOCKS = 6
"""A block with lessons serves at most so many times `block_tokens`: one that learns nothing must end too."""

PATIENCE_SECONDS: float = Settings.model_fields["patience_seconds"].default
IDLE_SECONDS = 0.001


@dataclass(slots=True)
class Block:
    """What one block served and learned."""

    gaps: list[float] = field(default_factory=list)
    ordered: int = 0
    learned: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens were served."""
        return len(self.gaps) + 1

    def take(self, events: Sequence[Event]) -> None:
        """Count the lessons learned among the events."""
        ended = [event for event in events if isinstance(event, LessonEnded)]
        self.learned += sum(isinstance(event.outcome, LessonLearned) for event in ended)


def run_interference(plan: Plan, say: Say) -> Report:
    """Blocks with lessons and without, in turn, under unbroken load and with pauses."""
    machine, loaded = this_machine(), load(plan)
    bench = _Bench(loaded, plan)
    bench.serve_unbroken(learning=True, tokens=plan.sizes.prompt_tokens)  # warms up
    unbroken, paused = list[tuple[Block, Block]](), list[tuple[Block, Block]]()
    for number in range(plan.rounds):
        on = bench.serve_unbroken(learning=True, tokens=plan.sizes.block_tokens)
        off = bench.serve_unbroken(learning=False, tokens=on.tokens)
        unbroken.append((on, off))
        paused.append((bench.serve_with_pauses(learning=True), bench.serve_with_pauses(learning=False)))
        say(f"round {number + 1} of {plan.rounds}: {on.tokens} tokens with {on.learned} lessons, and without")
    mode = bench.engine.packing.mode
    bench.engine.close()
    bars = (*_unbroken_bars(unbroken), *_paused_bars(paused))
    return Report("interference", machine, loaded.name, mode, plan.rounds, bars=bars)


class _Bench:
    """A lane with a learner's prefix on one slot and a turn to serve on the other."""

    def __init__(self, loaded: LoadedModel, plan: Plan) -> None:
        self._sizes = sizes = plan.sizes
        prefix, run = sizes.short_prefix_tokens, sizes.run_tokens
        context = max(prefix + run, sizes.prompt_tokens + MOST_BLOCKS * sizes.block_tokens) + 1
        self.engine = Engine(loaded.model, settings(plan, slots=2, context_tokens=context))
        self.engine.add_shadow("shadow", seed=0)
        self._lane = Lane(self.engine, loaded.tokenizer.backend_tokenizer)
        self._learned = text_tokens(loaded, prefix + run + 1)
        self._prompt = tuple(text_tokens(loaded, sizes.prompt_tokens, skip=prefix + run + 1))
        self._numbers = count()
        self.engine.step(Batch(serving_rows(LEARNER, 0, self._learned[:prefix])))

    def serve_unbroken(self, *, learning: bool, tokens: int) -> Block:
        """Serve one turn: so many tokens, and on until a lesson is learned if there are any."""
        self._lane.duty = DutyMeter()
        block, times = Block(), list[float]()
        name = self._submit(MOST_BLOCKS * self._sizes.block_tokens)
        lessons = list[str]()
        while len(times) < tokens or (learning and not block.learned):
            while learning and block.ordered - block.learned < 2:
                lessons.append(self._order_lesson(block))
            events = self._lane.tick()
            times += [time.perf_counter() for event in events if isinstance(event, TokenServed)]
            block.take(events)
            if any(isinstance(event, TurnEnded) for event in events):
                break
        self._lane.cancel(name)
        self._give_up(lessons)
        block.gaps = [after - before for before, after in pairwise(times)]
        return block

    def serve_with_pauses(self, *, learning: bool) -> Block:
        """Serve turns, each followed by as much idle time as it took."""
        self._lane.duty = DutyMeter(patience_seconds=PATIENCE_SECONDS)
        block, lessons = Block(), list[str]()
        for _ in range(self._sizes.block_turns):
            started, times = time.perf_counter(), list[float]()
            self._submit(self._sizes.turn_tokens)
            if learning:
                lessons.append(self._order_lesson(block))
            while self._lane.serving:
                events = self._lane.tick()
                times += [time.perf_counter() for event in events if isinstance(event, TokenServed)]
                block.take(events)
            block.gaps += [after - before for before, after in pairwise(times)]
            ended = time.perf_counter()
            self._pause(block, until=ended + (ended - started))
        self._give_up(lessons)
        return block

    def _pause(self, block: Block, *, until: float) -> None:
        while time.perf_counter() < until:
            if self._lane.learning:
                block.take(self._lane.tick())
            else:
                time.sleep(IDLE_SECONDS)

    def _give_up(self, lessons: Sequence[str]) -> None:
        """The block without lessons must not be served beside those that are left of the one with."""
        self._lane.cancel_lessons(lessons)
        self._lane.drain()

    def _submit(self, tokens: int) -> str:
        name = f"turn {next(self._numbers)}"
        self._lane.submit(TurnOrder(name, self._prompt, tokens, GREEDY, slot=OTHER))
        return name

    def _order_lesson(self, block: Block) -> str:
        sizes, name = self._sizes, f"lesson {next(self._numbers)}"
        prefix, run = sizes.short_prefix_tokens, sizes.run_tokens
        order = LessonOrder(
            id=name,
            shadow="shadow",
            stable=BASE,
            prefix=tuple(self._learned[:prefix]),
            tokens=tuple(self._learned[prefix:-1]),
            targets=tuple(self._learned[prefix + 1 :]),
            weights=(1.0,) * run,
        )
        self._lane.learn(order)
        block.ordered += 1
        return name


def _unbroken_bars(blocks: Sequence[tuple[Block, Block]]) -> tuple[Bar, ...]:
    on, off = [pair[0].gaps for pair in blocks], [pair[1].gaps for pair in blocks]
    step, longest = _over_blocks(off, 0.5), _over_blocks(on, 1.0)
    mean_on, mean_off = (1000 * statistics.median(map(statistics.fmean, gaps)) for gaps in (on, off))
    allowed = GAP_STEPS * step + 1000 * GAP_SECONDS
    learned = sum(block.learned for block, _ in blocks)
    return (
        Bar("time per token, p50, unbroken load", _over_blocks(on, 0.5), step, "ms", at_most=MOST_P50),
        Bar("time per token, mean, unbroken load", mean_on, mean_off, "ms", at_most=MOST_MEAN),
        Bar("longest gap, against 2 decode steps + 20 ms", longest, allowed, "ms", at_most=1.0),
        Bar("longest gap, with lessons over without", longest, _over_blocks(off, 1.0), "ms"),
        Bar("longest gap of all blocks", 1000 * max(map(max, on)), 1000 * max(map(max, off)), "ms"),
        Bar("lessons learned a block, unbroken load", learned, len(blocks), "lessons", at_least=1.0),
    )


def _paused_bars(blocks: Sequence[tuple[Block, Block]]) -> tuple[Bar, ...]:
    on, off = [pair[0].gaps for pair in blocks], [pair[1].gaps for pair in blocks]
    learned, ordered = (sum(getattr(pair[0], what) for pair in blocks) for what in ("learned", "ordered"))
    p95_on, p95_off = _over_blocks(on, 0.95), _over_blocks(off, 0.95)
    return (
        Bar("time per token, p95, with pauses", p95_on, p95_off, "ms", at_most=MOST_P95_WITH_PAUSES),
        Bar("lessons learned over ordered, with pauses", learned, ordered, "lessons", at_least=1.0),
    )


def _over_blocks(blocks: Sequence[Sequence[float]], quantile: float) -> float:
    """The median over blocks of each block's quantile, in milliseconds."""
    return 1000 * statistics.median(sorted(gaps)[int(quantile * (len(gaps) - 1))] for gaps in blocks)
