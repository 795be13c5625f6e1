"""Every setting, declared once: its type, its default, its sentence. Read once into a frozen value.

- Flags, environment (`RIDEALONG_…`) and a TOML file (`--config`) all come from the fields below; a flag wins
  over the environment, the environment over the file, the file over the default. Unknown keys are refused.
- Importing this loads no torch.
"""

import argparse
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from signals.policy import MAX_LESSON_TOKENS

ENVIRONMENT_PREFIX = "RIDEALONG_"

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+")
"""As browsers write it in `Origin`."""


class ConfigError(Exception):
    """A setting cannot be used as given."""


def default_data_dir() -> Path:
    """The data directory by the XDG rules: $XDG_DATA_HOME/ridealong, or ~/.local/share/ridealong."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "ridealong"


class Settings(BaseModel):
    """What a lane is started with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Field(
        default_factory=default_data_dir, description="where ledger, adapters and models are kept"
    )
    database: SecretStr | None = Field(
        None,
        description="the ledger's postgresql:// URL, better given by the environment; else a SQLite file in the "
        "data directory",
    )
    lease_seconds: float = Field(
        30.0, gt=0, description="how long a lane that says nothing keeps its agents, where lanes share a database"
    )
    model_cache: Path | None = Field(
        None, description="where converted weights are kept; else models/ in the data directory"
    )
    model: str | None = Field(
        None, description="a directory of safetensors, a .gguf file or a hub id; else the bundled SmolLM2"
    )
    api_key: SecretStr | None = Field(
        None, description="an operator's key: with it every request needs one; better given by the environment"
    )
    api_key_file: Path | None = Field(
        None, description="a file of keys, one a line, its owner's alone: operator KEY, or agent NAME KEY"
    )
    host: str = Field("127.0.0.1", description="the address to listen on; without keys loopback only")
    allow_origin: tuple[str, ...] = Field(
        (), description="an origin whose web pages may ask this lane, as http://host:port; give it again for each"
    )
    port: int = Field(8088, ge=0, le=65535, description="the port to listen on; 0 takes a free one")
    ready_file: Path | None = Field(None, description="a file that holds the URL once the lane serves")
    slots: int = Field(4, ge=1, le=256, description="sequences served at once")
    ctx: int = Field(
        4096, ge=16, description="tokens of context of each slot, at most what the model was made for"
    )
    repack: Literal["off", "serve", "both", "auto"] = Field(
        "auto",
        description="pack weights for oneDNN: serve cannot learn, both can and takes twice the weights' memory, "
        "auto is both where there is room, else off",
    )
    learn: tuple[str, ...] = Field((), description="an agent that may learn; give it again for each")
    untrusted: tuple[Literal["human", "tool", "peer", "self"], ...] = Field(
        (), description="an origin whose signals are kept but never learned; give it again for each"
    )
    policy: Path | None = Field(
        None, description="a TOML file of policies, [default] and [agents.NAME]; --learn NAME is short for one"
    )
    max_lesson_tokens: int = Field(
        MAX_LESSON_TOKENS, ge=1, description="tokens that one lesson may have, unless a policy says otherwise"
    )
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="how a shadow steps")
    lr: float = Field(1e-4, gt=0, le=1, description="the learning rate of a lesson's step")
    rank: int = Field(8, ge=1, le=256, description="the adapters' LoRA rank")
    alpha: int = Field(16, ge=1, description="the adapters' LoRA alpha; the term is scaled by alpha / rank")
    chunk_rows: int = Field(256, ge=1, description="rows of a lesson that go through a layer together, at most")
    lesson_mib: int = Field(256, ge=1, description="MiB a lesson may take; with less its graphs are rebuilt")
    loss_after: Literal["idle", "always", "never"] = Field(
        "idle", description="measure a lesson's loss after its step too: while nobody is served, always or never"
    )
    duty: float = Field(
        0.10, gt=0, le=1, description="share of lane time learning may take while someone is served"
    )
    patience_seconds: float = Field(
        5.0, ge=0, description="how long a lesson waits for a pause in serving before it learns beside it"
    )
    idle_seconds: float = Field(2.0, ge=0, description="how long the lane is idle before lessons run in the gap")
    lesson_ttl_seconds: float = Field(86400.0, gt=0, description="how long a lesson may wait for its turn")
    queue: int = Field(64, ge=0, description="turns that may wait for a slot; one more is answered 429")
    max_signals: int = Field(
        10_000, ge=1, description="signals that may be on their way into the ledger; one more is answered 429"
    )
    max_messages: int = Field(10_000, ge=1, description="messages of one request, and as many tools")
    max_body_mib: float = Field(32, gt=0, le=1024, description="MiB of one request's body")
    max_bodies_mib: float = Field(
        256, gt=0, validate_default=True, description="MiB of all bodies held at once; more is answered 503"
    )
    max_connections: int = Field(256, ge=1, description="connections open at once; one more is answered 503")
    read_seconds: float = Field(30.0, gt=0, description="how long a request's body may take to come")
    write_seconds: float = Field(60.0, gt=0, description="how long a client may take nothing of its answer")
    keep_alive_seconds: float = Field(
        75.0, gt=0, description="how long a connection may be open without the whole head of a request"
    )
    drain_seconds: float = Field(
        10.0, gt=0, description="how long open requests may go on after the service was told to stop"
    )

    @field_validator("learn", "untrusted", "allow_origin", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    @field_validator("allow_origin")
    @classmethod
    def _origins_without_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; write scheme://host or scheme://host:port, no path")
        return value

    @field_validator("max_bodies_mib")
    @classmethod
    def _room_for_one(cls, value: float, info: ValidationInfo) -> float:
        one = info.data.get("max_body_mib", 0)
        if value < one:
            raise ValueError(f"a single body may have {one:g} MiB; raise this, or lower --max-body-mib")
        return value

    @field_validator("host")
    @classmethod
    def _loopback_without_keys(cls, value: str, info: ValidationInfo) -> str:
        keys = info.data.get("api_key") is not None or info.data.get("api_key_file") is not None
        if keys or value == "localhost" or _is_loopback(value):
            return value
        raise ValueError(
            f"the address {value!r} is not loopback, and without a key a lane listens on loopback only: "
            "give keys with --api-key-file FILE or RIDEALONG_API_KEY, or use 127.0.0.1 or ::1"
        )

    @property
    def models(self) -> Path:
        """Where converted weights are kept."""
        return self.model_cache or self.data_dir / "models"

    @property
    def ledger(self) -> str | Path:
        """The ledger's URL or file."""
        return self.data_dir / "ledger.db" if self.database is None else self.database.get_secret_value()

    @property
    def exports(self) -> Path:
        """Where exported adapters are put, and adapters to load are found."""
        return self.data_dir / "exports"


def add_flags(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Add a flag for each setting (or for those named), and `--config`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    for name, field in Settings.model_fields.items():
        if names is None or name in names:
            parser.add_argument(f"--{name.replace('_', '-')}", **_flag(name, field))


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings from flags, environment and file.

    Raises:
        ConfigError: a key is unknown or a value is not allowed; the message names it and where it came from.
    """
    given = _from_file(flags.get("config"))
    given |= _from_environment(environment)
    given |= {name: flags[name] for name in Settings.model_fields if flags.get(name) is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(dict(item)) for item in error.errors())) from error


def _flag(name: str, field: FieldInfo) -> dict[str, Any]:
    default = "" if field.default is None or field.default_factory else f" (default: {field.default!s:.40})"
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else None
    flag: dict[str, Any] = {"dest": name, "help": f"{field.description}{default or ''}", "default": None}
    if choices:
        return flag | {"choices": choices}
    if get_origin(field.annotation) is tuple:
        return flag | {"action": "append", "metavar": name.upper(), "help": field.description}
    return flag | {"metavar": name.upper()}


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {key: value for key, value in environment.items() if key.startswith(ENVIRONMENT_PREFIX)}
    return {key.removeprefix(ENVIRONMENT_PREFIX).lower(): value for key, value in found.items()}


def _sentence(error: dict[str, Any]) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"there is no setting {name!r}; the settings are {', '.join(Settings.model_fields)}"
    given = "" if name in {"api_key", "database"} else f" {error['input']!r}"
    return f"--{name.replace('_', '-')}{given}: {error['msg'].removeprefix('Value error, ')}"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
