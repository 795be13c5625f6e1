"""A lane as the settings have it: the model loaded, its weights packed, its engine made."""

import time
from collections.abc import Callable

from daemon.config import Settings
from engine.duty import DutyMeter
from engine.engine import Engine, EngineSettings
from engine.lane import Lane
from engine.lora import AdapterShape
from engine.shadow import OptimizerSettings
from engine.weights import LoadedModel, load_model


def load_lane(
    settings: Settings, optimizer: OptimizerSettings, say: Callable[[str], None]
) -> tuple[LoadedModel, Lane]:
    """Load the model and make its lane; takes seconds, and belongs on the lane's thread. Raises `EngineError`."""
    started = time.perf_counter()
    model = load_model(settings.model, cache=settings.models, say=say)
    made_for = getattr(model.model.config.get_text_config(), "max_position_embeddings", settings.ctx)
    engine = Engine(
        model.model,
        EngineSettings(
            slots=settings.slots,
            context_tokens=min(settings.ctx, made_for),
            repack=settings.repack,
            adapters=AdapterShape(rank=settings.rank, alpha=settings.alpha),
            optimizer=optimizer,
            chunk_rows=settings.chunk_rows,
            lesson_bytes=settings.lesson_mib * 2**20,
        ),
    )
    say(f"weights repacked: {engine.packing.mode}, {engine.packing.nbytes / 2**20:.0f} MiB")
    say(f"{model.name} is ready after {time.perf_counter() - started:.1f} s")
    duty = DutyMeter(settings.duty, patience_seconds=settings.patience_seconds)
    return model, Lane(engine, model.tokenizer.backend_tokenizer, duty=duty, measure_after=settings.loss_after)
