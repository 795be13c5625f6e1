"""What a lesson takes in memory, and how it is walked so that it fits; or why it cannot be.

Letters: `R` rows of the run, `C` rows of a chunk, `L` layers.

- Nothing here grows with the prefix: the slot holds it already, and its scores are a tile at a time.
- With room for it every layer's graph is kept from the forward pass; else the graphs of one layer of one chunk
  exist at a time, and the chunk is halved until that fits.
- A lesson that does not fit even row by row is refused before anything runs.
- What a row takes is measured on the model itself, once, with a run of a few rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import KeyValueStore
from engine.errors import LessonRefused
from engine.loss import SLICE_BYTES
from engine.memory import Room
from engine.model import LayeredModel
from engine.run_view import LessonView, RunLinks
from engine.walk import WalkForm

LESSON_BYTES = 256 * 2**20
"""What one lesson may take: room for every graph of a reply of a hundred tokens at 135 million parameters. Less
rebuilds graphs of short replies, which costs a third more time; more is rarely used."""

CHUNK_ROWS = 256
"""Rows of a chunk at most: beyond, products gain no more from more rows, and segments grow long."""

LEAST_RECURRENT_CHUNK = 2
"""Recurrent layers take a single row by a kernel that hands no state on with a gradient."""

PROBE_ROWS = 8
"""Rows of the run that is measured: enough that what does not grow with rows hardly counts."""

_LOGIT_COPIES = 3
"""A slice of logits, its log-softmax and its gradient exist at once."""


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What one row of a run takes: the graphs of all layers, of the largest one, and what is kept beside them."""

    graphs: int
    largest_graph: int
    kept: int
    logits: int

    def need(self, rows: int, chunk_rows: int, *, keeps_graphs: bool) -> int:
        """Bytes of a lesson of so many rows, walked that way."""
        graphs = rows * self.graphs if keeps_graphs else min(rows, chunk_rows) * self.largest_graph
        logits = _LOGIT_COPIES * min(SLICE_BYTES, rows * self.logits)
        return graphs + rows * self.kept + logits


def plan_walk(rows: int, per_row: RowBytes, *, room: Room, chunk_rows: int, least_chunk: int) -> WalkForm:
    """How to walk a run of so many rows within the room there is, in chunks of `chunk_rows` at most.

    Raises:
        LessonRefused: `host_memory` or `device_memory`; it does not fit even a row at a time.
    """
    budget = room.nbytes
    chunk_rows = max(chunk_rows, least_chunk)
    if per_row.need(rows, chunk_rows, keeps_graphs=True) <= budget:
        return WalkForm(chunk_rows, keeps_graphs=True)
    while per_row.need(rows, chunk_rows, keeps_graphs=False) > budget and chunk_rows > least_chunk:
        chunk_rows = max(chunk_rows // 2, least_chunk)
    need = per_row.need(rows, chunk_rows, keeps_graphs=False)
    if need > budget:
        raise LessonRefused(
            room.refusal,
            f"the lesson's {rows} rows need {need / 2**20:.0f} MiB even in chunks of {chunk_rows}, and a lesson "
            f"may take {budget / 2**20:.0f} MiB here ({room.limit}); the need grows with the run's rows, not with "
            "its prefix. Send a shorter reply or span, or raise what limits it",
        )
    return WalkForm(chunk_rows)


def measure_row_bytes(model: LayeredModel, *, recurrent: bool) -> RowBytes:
    """What a row of a run takes on this model, by a forward pass of a few rows without a prefix."""
    store, links = KeyValueStore(slots=1, context_tokens=PROBE_ROWS), RunLinks()
    view = LessonView(
        store,
        links,
        layers=len(model.layers),
        slot=0,
        prefix_tokens=0,
        chunk=0,
        chunk_start=0,
        prefix_states={} if recurrent else None,
    )
    with torch.no_grad():
        tokens, positions = torch.zeros(1, PROBE_ROWS, dtype=torch.long), torch.arange(PROBE_ROWS)[None]
        program = model.record(tokens, positions, view)
    graphs, handed = [], 0
    state = program.entry
    for layer in range(len(program.calls)):
        leaf = state.detach().requires_grad_()
        with _counting(model) as counted, torch.enable_grad():
            state = model.run_layer(program, layer, leaf)
        graphs.append(sum(counted.values()))
        handed += sum(held.nbytes for held in view.handed_on().values())
    inputs = program.entry.nbytes * (len(program.calls) + 4)  # every layer's input, and states, gradient, served
    return RowBytes(
        graphs=sum(graphs) // PROBE_ROWS,
        largest_graph=max(graphs) // PROBE_ROWS,
        kept=(inputs + 2 * handed) // PROBE_ROWS,  # what is handed on, and its gradients
        logits=4 * model.vocabulary,
    )


@contextmanager
def _counting(model: LayeredModel) -> Iterator[dict[int, int]]:
    """Count the bytes that graphs made inside keep for their backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.model.parameters()}
    counted: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            counted[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a graph that keeps its own output would keep itself, and the weights, for good

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield counted
