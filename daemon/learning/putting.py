"""Putting: a batch of signals goes on disk in one transaction, and what only tells about others ends with that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from daemon.http.errors import Conflict
from daemon.learning.records import stored_signal
from daemon.learning.settling import ends_of
from signals.policy import Policy
from signals.records import Relevance, Signal, Verdict
from signals.weights import Trust
from store import leases, signals
from store.clock import now_us
from store.records import Put


@dataclass(frozen=True, slots=True)
class Batch:
    """Signals that came together."""

    signals: Sequence[Signal]
    private: bool
    sender: Trust
    sent: str | None = None
    each: bool = False


def put_batch(session: Session, batch: Batch, policy: Policy) -> list[Put]:
    """Put a batch; what only tells about others is settled with that."""
    rows = [
        stored_signal(signal, now_us=now_us(), sender=batch.sender, sent=batch.sent) for signal in batch.signals
    ]
    private = [batch.private or policy.of(row.agent).is_private(row.context) for row in rows]
    kept = [replace(row, private=True) if hidden else row for row, hidden in zip(rows, private, strict=True)]
    first = {signal.id: signal for signal in reversed(batch.signals)}.values()
    about_others = [signal for signal in first if isinstance(signal, Relevance | Verdict)]
    elsewhere = _elsewhere(session, {signal.agent for signal in about_others})
    ends = ends_of(session, [signal for signal in about_others if signal.agent not in elsewhere], policy)
    puts = signals.put_signals(session, kept, ends=ends)
    clashes = [put.id for put in puts if put.status == "conflict"]
    if clashes and not batch.each:
        raise conflict(*clashes)
    return puts


def _elsewhere(session: Session, agents: set[str]) -> set[str]:
    """Those that belong to another lane, or did last."""
    here = leases.Leases.of(session)
    if not here.shared:
        return set()
    lane = here.lane
    return {agent for agent, lease in leases.leases_of(session, agents).items() if lease.lane != lane}


def conflict(*clashes: str, each: bool = False) -> Conflict:
    """Ids that are taken by other bodies; with `each`, of signals that were taken each by itself."""
    more = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
    nothing = "" if each else "; nothing of this request was recorded"
    return Conflict(
        f"signal {clashes[0]!r} is already recorded with another body{more}{nothing}. "
        "Give a new signal an id of its own",
        param="id",
        code="signal_conflict",
    )
