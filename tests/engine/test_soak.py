"""Days of load in minutes: serving is the same to the byte whatever is learned beside it, and nothing piles up.

- Three slots serve turn after turn while lessons walk, a segment in every tick: ten times what the duty allows.
- Then a fresh engine that has no shadow serves the same turns, submitted and cancelled at the same ticks. After
  every turn its reply, and all that its slot holds, have to be the same; so have, after every tick, the rows that
  each slot was served. `soak_load` says why nothing but a difference in serving can make the two part.
- What the process holds is compared at rest: after a warm-up in which every shadow has learned, after a third of
  the time, at the end.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine.duty import DutyMeter
from engine.engine import Engine, EngineSettings
from engine.lane import Lane
from engine.lora import tensors_sha256
from engine.packed import PackedLinear
from engine.slots import BASE
from engine.weights import load_model
from tests.engine.soak_load import Load, Shape
from tests.engine.tiny import VOCABULARY, finish, perturb, random_tokens, serve, start_walk, tiny_model
from tests.footprint import (
    ASKED_SECONDS,
    MOST_GROWTH_MIB,
    SOAK_SECONDS,
    Footprint,
    footprint,
    footprints_line,
    make_kernels,
    tell,
)

STABLES = (BASE, BASE, "promoted")
SHADOWS = ("first", "second", "second")
"""By slot: what it is served with, and what its lessons train."""

WARM_TICKS = 200
"""Most kinds of turn and of lesson have come by then."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is soaked: its lane, made anew each time, and the shape of its load."""

    lane: Callable[[], Lane]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the soak: its ticks until the rest after it, and what was held then."""

    ticks: int
    held: Footprint


@pytest.fixture(params=["bundled"] if ASKED_SECONDS else ["llama", "qwen3_5_text"])
def subject(request: pytest.FixtureRequest, model_cache: Path) -> Iterator[Subject]:
    """The bundled model if seconds are asked for, else a tiny one with attention and a tiny recurrent one."""
    made: list[Lane] = []

    def lane() -> Lane:
        made.append(_bundled_lane(model_cache) if request.param == "bundled" else _tiny_lane(request.param))
        return made[-1]

    sizes = (49152, 512, 80, 48) if request.param == "bundled" else (VOCABULARY, 96, 24, 16)
    yield Subject(lane, Shape(*sizes, STABLES, SHADOWS))
    for each in made:
        each.engine.close()


@pytest.mark.timeout(240 + 4 * SOAK_SECONDS)
def test_what_is_served_is_the_same_to_the_byte_whatever_is_learned_and_nothing_piles_up(subject: Subject) -> None:
    lane = subject.lane()
    base = _base_sha256(lane.engine)
    load = Load(lane, subject.shape, learning=True)
    warm, third, end = _soak(load)
    _tell(load, warm.held, third.held, end.held)
    assert _base_sha256(lane.engine) == base, "learning changed the base"
    assert not end.held.grown_since(warm.held)
    assert end.held.resident_mib - third.held.resident_mib <= MOST_GROWTH_MIB
    assert min(load.learned, load.refused, load.cancelled) > 0, load.outcomes
    plain = Load(subject.lane(), subject.shape, learning=False)
    for part in (warm, third, end):
        _serve(plain, part.ticks)
    assert _base_sha256(plain.lane.engine) == base
    assert _first_difference(load, plain) is None
    assert _storage(load) == _storage(plain), "what was cut off since is not the same"


@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
def test_an_engine_that_is_closed_leaves_no_tensor_behind(family: str) -> None:
    before = footprint().tensors
    _serve_and_learn_and_close(family)
    assert footprint().tensors <= before


def _serve_and_learn_and_close(family: str) -> None:
    engine, tokens = Engine(tiny_model(family), EngineSettings(slots=1, context_tokens=96)), random_tokens(30)
    engine.add_shadow("shadow", seed=1)
    serve(engine, 0, tokens[:20])
    finish(start_walk(engine, 0, tokens, 20))
    engine.close()


def _soak(load: Load) -> list[Part]:
    """Warm up until every shadow has learned, then serve for as long as is asked; rest after each part."""
    for shadow in sorted(set(SHADOWS)):
        load.lane.engine.add_shadow(shadow, seed=7)
    make_kernels(load.lane.engine.model.model)
    shadows = load.lane.engine.shadows.values()
    warm = _serve_until(load, lambda: load.ticks >= WARM_TICKS and all(shadow.steps for shadow in shadows))
    started = time.perf_counter()
    third = _serve_until(load, lambda: time.perf_counter() >= started + SOAK_SECONDS / 3)
    return [warm, third, _serve_until(load, lambda: time.perf_counter() >= started + SOAK_SECONDS)]


def _serve_until(load: Load, is_over: Callable[[], bool]) -> Part:
    ticks = 0
    while not is_over():
        load.tick()
        ticks += 1
    load.rest()
    return Part(ticks, footprint())


def _serve(load: Load, ticks: int) -> None:
    for _ in range(ticks):
        load.tick()
    load.rest()


def _first_difference(load: Load, plain: Load) -> object:
    """The first turn that was not served alike, with lessons and without; None if there is none."""
    pairs = zip_longest(load.served, plain.served)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _storage(load: Load) -> list[str]:
    """The hash of every slot's whole storage, used and unused."""
    store = load.lane.engine.store
    return [store.sha256(slot=slot, stop=store.context_tokens) for slot in range(store.slots)]


def _base_sha256(engine: Engine) -> str:
    """The hash of every weight that isn't an adapter's, packed ones included."""
    model = engine.model.model
    tensors = {name: value for name, value in model.named_parameters() if "lora_" not in name}
    packs = {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    for name, pack in packs.items():
        assert pack._transposed is not None
        tensors |= {f"{name} packed": pack._packed.to_dense(), f"{name} turned": pack._transposed.to_dense()}
    return tensors_sha256(tensors)


def _tell(load: Load, warm: Footprint, third: Footprint, end: Footprint) -> None:
    tell(
        f"lane soak: {SOAK_SECONDS:.0f} s, {len(load.served)} turns, {load.tokens} tokens, lessons: "
        f"{load.learned} learned, {load.refused} refused, {load.cancelled} cancelled; "
        + footprints_line(warm, third, end)
    )


def _bundled_lane(cache: Path) -> Lane:
    loaded = load_model(None, cache=cache)
    settings = EngineSettings(slots=len(STABLES), context_tokens=512, ubatch_rows=64, repack="both")
    return _lane(Engine(loaded.model, settings), loaded.tokenizer.backend_tokenizer)


def _tiny_lane(family: str) -> Lane:
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    settings = EngineSettings(slots=len(STABLES), context_tokens=96, ubatch_rows=16)
    return _lane(Engine(tiny_model(family), settings), words)


def _lane(engine: Engine, tokenizer: Tokenizer) -> Lane:
    """A lane with the stable set that a slot is served with, and a segment in every tick."""
    engine.bank.create("promoted", seed=3)
    perturb(engine, "promoted")
    return Lane(engine, tokenizer, duty=DutyMeter(share=1.0))
