"""What a busy lane learned is learned again to the byte by an engine that serves nobody."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from engine.again import DoneLesson, NotAgain, learn_again
from engine.duty import DutyMeter
from engine.engine import Engine, EngineSettings
from engine.lane import Lane
from engine.orders import LessonEnded, LessonOrder, TurnEnded, TurnOrder
from engine.served import PassShape, ServedPrefix, ServedRun
from engine.slots import BASE
from engine.walk import LessonLearned
from tests.engine.tiny import VOCABULARY, random_tokens, tiny_model

SETTINGS = EngineSettings(slots=4, context_tokens=256, ubatch_rows=16, chunk_rows=5)
SLOTS = (0, 1, 3)
"""Two neighbours and one apart. The conversation on slot 1 is the agent's."""
REPLIES = (7, 12, 9)
ROUNDS = 5
PROMOTED_AFTER, ROLLED_BACK_AFTER = 1, 3
FAMILIES = ("llama", "gemma3_text", "qwen3_5_text")


class Says:
    """Lets a reply be these tokens and nothing else."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = list(tokens)

    @property
    def ended(self) -> bool:
        return not self._left

    def mask(self, logits: Tensor) -> None:
        kept = logits[self._left[0]].clone()
        logits.fill_(-torch.inf)
        logits[self._left[0]] = kept

    def take(self, token: int) -> None:
        assert token == self._left.pop(0)


@dataclass
class History:
    """What happened to a shadow, in order: a lesson's id, `promote` or `rollback`; and what each lesson was."""

    events: list[str] = field(default_factory=list)
    lessons: dict[str, DoneLesson] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    promoted: dict[str, Tensor] = field(default_factory=dict)
    end: dict[str, Tensor] = field(default_factory=dict)


def live(family: str, *, without: str | None = None) -> History:
    """A lane with three conversations that decode side by side and go on; one of them is learned from."""
    engine, history = Engine(tiny_model(family), SETTINGS), History()
    shadow = engine.add_shadow("shadow", seed=1)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    lane = Lane(engine, words, duty=DutyMeter(share=1.0))
    held: dict[int, list[int]] = {slot: random_tokens(11 + 6 * slot, seed=slot) for slot in SLOTS}
    stable, waiting = BASE, list[LessonOrder]()
    for round_ in range(ROUNDS):
        replies = {slot: random_tokens(REPLIES[i], seed=90 + 10 * round_ + i) for i, slot in enumerate(SLOTS)}
        for slot in SLOTS:
            mine = slot == 1
            order = TurnOrder(
                id=f"turn-{round_}-{slot}",
                tokens=tuple(held[slot]),
                max_tokens=len(replies[slot]),
                stable=stable if mine else BASE,
                slot=slot,
                constraint=partial(Says, replies[slot]),
            )
            lane.submit(order, [replace(lesson, rides=order.id) for lesson in waiting] if mine else [])
        drive(lane, history, {lesson.id: lesson for lesson in waiting})
        waiting = [one for one in lessons(round_, held[1], replies[1], stable) if one.id != without]
        if engine.recurrent is not None:
            waiting = [
                one for one in waiting if one.id.startswith("correction")
            ]  # states are kept at prompts' ends
        for slot in SLOTS:
            held[slot] += [*replies[slot], *random_tokens(4 + slot, seed=round_)]
        if round_ == PROMOTED_AFTER:
            history.promoted, stable = shadow.snapshot(), "promoted"
            engine.bank.load(stable, history.promoted)
            waiting = []  # their prefixes are served no more
            history.events.append("promote")
        if round_ == ROLLED_BACK_AFTER:
            shadow.restore(history.promoted)
            history.events.append("rollback")
    history.end = shadow.snapshot()
    engine.close()
    return history


def lessons(round_: int, prompt: list[int], reply: list[int], stable: str) -> Iterator[LessonOrder]:
    """Another reply after the prompt, and the second half of the one that was said, after decoded rows."""
    instead = random_tokens(8, seed=200 + round_)
    for name, prefix, run in (
        ("correction", prompt, instead),
        ("action", prompt + reply[:6], reply[6:]),
    ):
        yield LessonOrder(
            id=f"{name}-{round_}",
            shadow="shadow",
            stable=stable,
            prefix=tuple(prefix[:-1]),
            tokens=(prefix[-1], *run[:-1]),
            targets=tuple(run),
            weights=(1.0,) * len(run),
            lr=1e-2 if name == "action" else None,
        )


def drive(lane: Lane, history: History, orders: dict[str, LessonOrder]) -> None:
    """Serve to the end of all turns and lessons."""
    ended = 0
    while lane.serving or lane.learning:
        for event in lane.tick():
            if isinstance(event, LessonEnded):
                record(history, orders[event.lesson], event)
            ended += isinstance(event, TurnEnded)
    assert ended == len(SLOTS)


def record(history: History, order: LessonOrder, event: LessonEnded) -> None:
    learned, prefix = event.outcome, event.prefix
    assert isinstance(learned, LessonLearned), learned
    assert prefix is not None
    history.events.append(order.id)
    history.hashes[order.id] = learned.step.sha_after
    history.lessons[order.id] = DoneLesson(
        prefix=order.prefix,
        served=prefix,
        stable=order.stable,
        tokens=order.tokens,
        targets=order.targets,
        weights=order.weights,
        chunk_rows=learned.chunk_rows,
        lr=learned.step.lr,
    )


def rebuild(family: str, history: History, *, without: str | None = None) -> History:
    """The same on an engine of its own, from what was recorded alone."""
    engine, rebuilt = Engine(tiny_model(family), SETTINGS), History()
    shadow = engine.add_shadow("shadow", seed=1)
    for event in history.events:
        if event == "promote":
            rebuilt.promoted = shadow.snapshot()
            engine.bank.load("promoted", rebuilt.promoted)
        elif event == "rollback":
            shadow.restore(rebuilt.promoted)
        elif event != without:
            learned = learn_again(engine, history.lessons[event], shadow="shadow")
            rebuilt.hashes[event] = learned.step.sha_after
    rebuilt.end = shadow.snapshot()
    engine.close()
    return rebuilt


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_a_busy_lane_is_taken_again_to_the_byte(family: str) -> None:
    history = live(family)
    shapes = [run.shape for lesson in history.lessons.values() for run in lesson.served.runs]
    assert {shape.slots for shape in shapes} >= {1, 2, 3}, "no prefix was decoded beside others"
    assert {"promote", "rollback"} < set(history.events)
    assert len(history.lessons) >= 3
    rebuilt = rebuild(family, history)
    assert rebuilt.hashes == history.hashes
    assert same(rebuilt.end, history.end)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lesson_left_out_leaves_the_shadow_of_a_lane_that_never_had_it(family: str) -> None:
    history, twin = live(family), live(family, without="correction-0")
    assert not same(history.promoted, twin.promoted)
    rebuilt = rebuild(family, history, without="correction-0")
    assert same(rebuilt.promoted, twin.promoted)
    assert same(rebuilt.end, twin.end)
    assert rebuilt.hashes == twin.hashes


def test_a_step_whose_prefix_is_served_in_other_passes_is_another_step() -> None:
    history = live("llama")
    rebuilt = rebuild(
        "llama", with_prefixes(history, lambda lesson: (ServedRun(PassShape(1), len(lesson.prefix)),))
    )
    assert all(rebuilt.hashes[name] != sha for name, sha in history.hashes.items())


def test_a_decoded_row_depends_on_how_many_were_decoded_with_it() -> None:
    history = live("llama")
    assert rebuild("llama", with_prefixes(history, alone)).hashes != history.hashes


def alone(lesson: DoneLesson) -> tuple[ServedRun, ...]:
    """The prefix as it would have been served with nobody beside."""
    return tuple(ServedRun(PassShape(run.shape.rows), run.count) for run in lesson.served.runs)


def with_prefixes(history: History, runs: Callable[[DoneLesson], tuple[ServedRun, ...]]) -> History:
    lessons = {
        name: replace(lesson, served=ServedPrefix(lesson.served.slot, runs(lesson)))
        for name, lesson in history.lessons.items()
    }
    return replace(history, lessons=lessons)


def test_runs_are_told_as_numbers_and_read_again() -> None:
    for run in [run for lesson in live("llama").lessons.values() for run in lesson.served.runs]:
        assert ServedRun.of_json(run.as_json()) == run
    assert ServedRun(PassShape(16), 9).as_json() == [9, 16]


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys")  # PEFT, on expert layers
def test_a_model_with_experts_is_not_done_again() -> None:
    engine = Engine(tiny_model("qwen3_moe"), SETTINGS)
    engine.add_shadow("shadow", seed=1)
    lesson = DoneLesson((), ServedPrefix(0, ()), BASE, (1, 2), (2, 3), (1.0, 1.0), 2, 1e-3)
    with pytest.raises(NotAgain, match="experts"):
        learn_again(engine, lesson, shadow="shadow")
