"""A walk in chunks is the walk of one graph; graphs kept are graphs rebuilt; and what does not fit is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine import run_view
from engine.budget import RowBytes, measure_row_bytes, plan_walk
from engine.engine import Engine, EngineSettings
from engine.errors import LessonRefused
from engine.memory import Room, lesson_room
from engine.shadow import OptimizerSettings
from engine.weights import LoadedModel
from tests.engine.conftest import SGD
from tests.engine.test_walk import stepped_gradient
from tests.engine.tiny import (
    finish,
    flat,
    peft_reference,
    perturb,
    random_tokens,
    reference_gradient,
    serve,
    start_walk,
    tiny_model,
)

PREFIX, RUN = 23, 19


def engine_of(family: str, *, chunk_rows: int, lesson_bytes: int = 2**28) -> Engine:
    settings = EngineSettings(
        slots=1, context_tokens=64, ubatch_rows=16, optimizer=SGD, chunk_rows=chunk_rows, lesson_bytes=lesson_bytes
    )
    made = Engine(tiny_model(family), settings)
    made.add_shadow("shadow", seed=7)
    perturb(made, "shadow")
    return made


def chunked(family: str, *, chunk_rows: int) -> tuple[float, Tensor]:
    """Loss and gradient of the lesson, in chunks; all of its prefix and no more is served."""
    made = engine_of(family, chunk_rows=chunk_rows)
    sequence = random_tokens(PREFIX + RUN)
    serve(made, 0, sequence[: PREFIX - 1])
    try:
        return stepped_gradient(made, 0, sequence, PREFIX)
    finally:
        made.close()


def agrees(gradient: Tensor, expected: Tensor) -> bool:
    close = F.cosine_similarity(gradient, expected, dim=0) >= 0.999999
    return bool(close) and abs(float(gradient.norm() / expected.norm()) - 1) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_5_text", "lfm2", "mamba2"])
@pytest.mark.parametrize("chunk_rows", [1, 3, 16, RUN, RUN + 1])
def test_a_walk_in_chunks_is_the_walk_of_one_graph(family: str, chunk_rows: int) -> None:
    whole_loss, whole = chunked(family, chunk_rows=1000)
    loss, gradient = chunked(family, chunk_rows=chunk_rows)
    assert abs(loss - whole_loss) < 1e-5
    assert agrees(gradient, whole)


def test_the_walk_in_chunks_is_peft_and_autograd() -> None:
    made = engine_of("llama", chunk_rows=5)
    sequence = random_tokens(PREFIX + RUN)
    serve(made, 0, sequence[: PREFIX - 1])
    loss, gradient = stepped_gradient(made, 0, sequence, PREFIX)
    reference = peft_reference(tiny_model(), made.bank.tensors("shadow"), rank=8, alpha=16)
    expected_loss, expected = reference_gradient(reference, sequence, PREFIX)
    assert abs(loss - expected_loss) < 1e-5
    assert agrees(gradient, flat(expected))


@pytest.fixture
def plain_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain walk: no gradient passes the border between two chunks."""
    add = run_view.RunLinks.add

    def stopped(self: run_view.RunLinks, chunk: int, layer: int, handed: run_view.Handed, *, learns: bool) -> None:
        add(self, chunk, layer, handed, learns=False)

    monkeypatch.setattr(run_view.RunLinks, "add", stopped)


@pytest.mark.usefixtures("plain_walk")
@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
def test_the_plain_walk_is_told_apart(family: str) -> None:
    _, whole = chunked(family, chunk_rows=1000)
    _, gradient = chunked(family, chunk_rows=5)
    assert not agrees(gradient, whole)


def test_on_the_real_model_a_run_of_200_in_chunks_of_64_is_the_walk_of_one_graph(smollm: LoadedModel) -> None:
    gradients = []
    for chunk_rows in (64, 1000):
        settings = EngineSettings(
            slots=1, context_tokens=300, optimizer=SGD, chunk_rows=chunk_rows, lesson_bytes=2**30
        )
        made = Engine(smollm.model, settings)
        made.add_shadow("shadow", seed=7)
        perturb(made, "shadow")
        sequence = random_tokens(250, vocabulary=49152)
        serve(made, 0, sequence[:49])
        gradients.append(stepped_gradient(made, 0, sequence, 50))
        made.close()
    assert abs(gradients[0][0] - gradients[1][0]) < 1e-5
    assert agrees(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("chunk_rows", [5, 1000])
def test_graphs_kept_and_graphs_rebuilt_are_the_same_step_to_the_byte(chunk_rows: int) -> None:
    per_row = measure_row_bytes(engine_of("llama", chunk_rows=16).model, recurrent=False)
    rebuilds = per_row.need(RUN, chunk_rows, keeps_graphs=False)
    shas = []
    for lesson_bytes in (2**28, rebuilds):
        settings = EngineSettings(
            slots=1,
            context_tokens=64,
            optimizer=OptimizerSettings(lr=1e-3),
            chunk_rows=chunk_rows,
            lesson_bytes=lesson_bytes,
        )
        made = Engine(tiny_model(), settings)
        made.add_shadow("shadow", seed=7)
        sequence = random_tokens(PREFIX + RUN)
        serve(made, 0, sequence[:PREFIX])
        for _ in range(3):
            walk = start_walk(made, 0, sequence, PREFIX)
            finish(walk)
        shas.append((walk.form.keeps_graphs, walk.form.chunk_rows, made.bank.sha256("shadow")))
        made.close()
    assert [kept for kept, _, _ in shas] == [True, False]
    assert shas[0][1:] == shas[1][1:]


def test_the_chunk_is_halved_until_the_lesson_fits_and_what_never_fits_is_refused() -> None:
    per_row = RowBytes(graphs=3000, largest_graph=1000, kept=10, logits=0)
    assert plan_walk(64, per_row, room=Room(200_000, "--lesson-mib"), chunk_rows=32, least_chunk=1).keeps_graphs
    halved = plan_walk(64, per_row, room=Room(10_000, "--lesson-mib"), chunk_rows=32, least_chunk=1)
    assert (halved.keeps_graphs, halved.chunk_rows) == (False, 8)
    assert plan_walk(64, per_row, room=Room(1640, "--lesson-mib"), chunk_rows=32, least_chunk=1).chunk_rows == 1
    with pytest.raises(LessonRefused, match="grows with the run's rows") as refused:
        plan_walk(64, per_row, room=Room(1639, "--lesson-mib"), chunk_rows=32, least_chunk=1)
    assert refused.value.code == "host_memory"


def test_on_a_device_its_free_memory_is_the_limit_and_the_refusal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1639, 9999))
    room = lesson_room(torch.device("cuda", 0), most=2**30)
    per_row = RowBytes(graphs=3000, largest_graph=1000, kept=10, logits=0)
    with pytest.raises(LessonRefused, match="free on the device cuda:0") as refused:
        plan_walk(64, per_row, room=room, chunk_rows=32, least_chunk=1)
    assert refused.value.code == "device_memory"
    assert lesson_room(torch.device("cuda", 0), most=1000) == Room(1000, "--lesson-mib", "device_memory")


def test_a_lesson_past_the_budget_is_refused_before_anything_runs() -> None:
    made = engine_of("llama", chunk_rows=16, lesson_bytes=1000)
    sequence = random_tokens(PREFIX + RUN)
    serve(made, 0, sequence[:PREFIX])
    sha = made.bank.sha256("shadow")
    with pytest.raises(LessonRefused) as refused:
        start_walk(made, 0, sequence, PREFIX)
    assert refused.value.code == "host_memory"
    assert made.bank.sha256("shadow") == sha


def test_what_a_row_takes_does_not_depend_on_how_it_is_measured_twice() -> None:
    made = engine_of("llama", chunk_rows=16)
    first = measure_row_bytes(made.model, recurrent=False)
    assert first == measure_row_bytes(made.model, recurrent=False)
    assert first.graphs > first.largest_graph > 0
    assert first.logits == 4 * made.model.vocabulary
