"""Engines for the tests: tiny random ones, and the bundled model where the real thing is asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from engine.shadow import OptimizerSettings
from engine.weights import LoadedModel, load_model
from tests.engine.tiny import perturb, tiny_model

SGD = OptimizerSettings(name="sgd", lr=1.0)
"""Plain SGD at lr 1: the shadow moves by exactly the negative gradient, which makes it visible."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A tiny llama with a shadow whose term is not zero; steps are plain SGD."""
    made = Engine(tiny_model(), EngineSettings(slots=3, context_tokens=96, ubatch_rows=16, optimizer=SGD))
    made.add_shadow("shadow", seed=7)
    perturb(made, "shadow")
    yield made
    made.close()


@pytest.fixture(scope="session")
def smollm(model_cache: Path) -> LoadedModel:
    """The bundled model."""
    return load_model(None, cache=model_cache)
