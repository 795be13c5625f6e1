"""The ledger's rows and filters in words: JSON for HTTP and the command line alike."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from daemon.http.errors import BadRequest
from store.chain import Verified
from store.ledger import Filter
from store.records import KeptStep, LedgerRow
from store.words import LedgerKind

ROWS = ("agent", "context", "kind", "code", "since", "until")
"""What rows of the ledger may be asked by."""

PAGE = (*ROWS, "cursor", "limit", "newest")
"""What a page of them may be asked by."""

_INTEGER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=-(2**63), lt=2**63)])
_BOOLEAN: TypeAdapter[bool] = TypeAdapter(bool)


def row_json(row: LedgerRow) -> dict[str, Any]:
    """A ledger row as JSON."""
    return {
        "seq": row.seq,
        "at": time_text(row.at_us),
        "kind": row.kind,
        "agent": row.agent,
        "context": row.context,
        "code": row.code,
        "subject": row.subject,
        "body": dict(row.body),
        "previous": row.previous,
        "sha": row.sha,
    }


def step_json(kept: KeptStep) -> dict[str, Any]:
    """A step as JSON: enough to see whether it learned in the right direction, and to do it again."""
    step = kept.step
    return {
        "id": step.id,
        "lesson": step.lesson,
        "agent": kept.agent,
        "number": kept.number,
        "signals": list(kept.signals),
        "prefix_turn": kept.prefix_turn,
        "prefix_token_count": kept.prefix_token_count,
        "tokens": list(kept.tokens),
        "targets": list(kept.targets),
        "weights": list(kept.weights),
        "stable": kept.stable,
        "served": dict(step.served),
        "made_by": dict(step.made_by),
        "forgotten": kept.forgotten,
        "loss_before": step.loss_before,
        "loss_after": step.loss_after,
        "row_losses_before": list(step.row_losses_before),
        "row_losses_after": None if step.row_losses_after is None else list(step.row_losses_after),
        "kl_served": step.kl_served,
        "gradient_norm": step.gradient_norm,
        "optimizer": step.optimizer,
        "hyperparameters": dict(step.hyperparameters),
        "lr": step.lr,
        "chunk_rows": step.chunk_rows,
        "shadow_before": step.shadow_before,
        "shadow_after": step.shadow_after,
        "snapshot": step.snapshot,
        "learning_ms": step.learning_ms,
        "waited_ms": step.waited_ms,
        "peak_bytes": step.peak_bytes,
        "created_at": time_text(kept.created_at_us),
    }


def verified_json(found: Verified) -> dict[str, Any]:
    """What the chain's check found, as JSON."""
    return {
        "rows": found.rows,
        "archived": found.archived,
        "head": found.head,
        "bad": found.bad,
        "why": found.why,
    }


def filter_of(query: Mapping[str, str], allowed: Collection[str] = PAGE) -> Filter:
    """What rows are asked for; other keys than those allowed are refused.

    Raises:
        BadRequest: a filter is unknown, or its value is not one it takes.
    """
    if unknown := sorted(query.keys() - set(allowed)):
        there_are = ", ".join(sorted(allowed))
        raise BadRequest(f"{unknown[0]}: there is no such filter; there are {there_are}", param=unknown[0])
    kind = query.get("kind")
    if kind is not None and kind not in set(LedgerKind):
        raise BadRequest(f"kind: {kind!r} is none of {', '.join(LedgerKind)}", param="kind")
    return Filter(
        agent=query.get("agent"),
        context=query.get("context"),
        kind=None if kind is None else LedgerKind(kind),
        code=query.get("code"),
        since_us=moment_of(query, "since"),
        until_us=moment_of(query, "until"),
    )


def moment_of(query: Mapping[str, str], name: str) -> int | None:
    """A time of day, where one is given: ISO 8601 (UTC unless it says otherwise), in microseconds.

    Raises:
        BadRequest: it is none.
    """
    if name not in query:
        return None
    try:
        at = datetime.fromisoformat(query[name])
    except ValueError as error:
        said = f"{name}: {query[name]!r} is not an ISO 8601 time such as 2026-01-31T12:00:00Z"
        raise BadRequest(said, param=name) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def integer_of(query: Mapping[str, str], name: str) -> int | None:
    """A whole number, where one is given. Raises `BadRequest` when it is none."""
    try:
        return None if name not in query else _INTEGER.validate_python(query[name])
    except ValidationError as error:
        raise BadRequest(f"{name}: {query[name]!r} is not a whole number", param=name) from error


def boolean_of(query: Mapping[str, str], name: str) -> bool:
    """Yes or no, which is what it is when not given. Raises `BadRequest` when it is neither."""
    try:
        return _BOOLEAN.validate_python(query.get(name, "false"))
    except ValidationError as error:
        raise BadRequest(f"{name}: {query[name]!r} is neither true nor false", param=name) from error


def refusal_json(code: str | None, message: str | None, position: int | None) -> dict[str, Any] | None:
    """Why something was refused; null where it was not."""
    return None if code is None else {"code": code, "message": message, "position": position}


@lru_cache(maxsize=256)  # what came together has one time
def time_text(at_us: int) -> str:
    """A time of day in ISO 8601, UTC."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat()
