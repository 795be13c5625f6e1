"""What became of lessons, as answers tell it: told by the lane, or read from the ledger, in the same words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy.orm import Session

from signals.refusals import Refusal, RefusalCode
from store import signals, steps
from store.records import KeptSignal, Step
from store.words import SignalState

FateStatus = Literal["riding", "learned", "refused", "waiting"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a lesson, or of the signal that was to make one: then there is no lesson."""

    lesson: str | None
    kind: str
    signals: tuple[str, ...]
    status: FateStatus
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Is it decided for good?"""
        return self.status in {"learned", "refused"}

    def as_json(self) -> dict[str, Any]:
        """The JSON of it."""
        told = {"lesson": self.lesson, "kind": self.kind, "signals": list(self.signals), "status": self.status}
        return told | dict(self.facts)


@dataclass(frozen=True, slots=True)
class TurnLessons:
    """What became of the lessons of a turn: those that rode it, and the one that its request asked for."""

    rode: Sequence[Fate]
    own: Fate | None = None

    @property
    def all(self) -> tuple[Fate, ...]:
        """All of them, its own last."""
        if self.own is None:
            return tuple(self.rode)
        others = (fate for fate in self.rode if fate.lesson != self.own.lesson)
        return (*others, self.own)


def learn_json(turns: Iterable[TurnLessons]) -> dict[str, Any]:
    """The `learn` object of an answer: every lesson of its turns, and how the one that was asked for stands."""
    told = list(turns)
    learn: dict[str, Any] = {"lessons": [fate.as_json() for lessons in told for fate in lessons.all]}
    for own in (lessons.own for lessons in told if lessons.own is not None):
        learn["status"] = own.status
        if own.status == "refused":
            learn["refusal"] = own.facts["refusal"]
    return learn


def learned_facts(step: Step, number: int) -> dict[str, Any]:
    """What is told of a lesson that was learned."""
    return {
        "step": number,
        "loss": step.loss_before,
        "loss_after": step.loss_after,
        "kl_served": step.kl_served,
        "gradient_norm": step.gradient_norm,
        "learning_ms": round(step.learning_ms, 1),
        "waited_ms": round(step.waited_ms, 1),
    }


def refused_facts(refusal: Refusal) -> dict[str, Any]:
    """What is told of a lesson that was refused."""
    return {"refusal": refusal.model_dump(mode="json")}


def kept_fate(session: Session, signal: str, *, riding: bool) -> Fate:
    """What the ledger knows of a signal that makes a lesson. `riding`: the lane has that lesson now.

    Raises:
        Unknown: there is no such signal.
    """
    kept = signals.signal_of(session, signal)
    match kept.state:
        case SignalState.LEARNED:
            assert kept.step is not None, f"signal {signal} was learned without a step"
            step = steps.step_of(session, kept.step)
            return _fate(kept, "learned", learned_facts(step.step, step.number))
        case SignalState.REFUSED:
            return _fate(kept, "refused", refused_facts(_refusal(kept)))
        case _:
            return _fate(kept, "riding" if riding else "waiting", {})


def _fate(kept: KeptSignal, status: FateStatus, facts: Mapping[str, Any]) -> Fate:
    return Fate(kept.lesson, kept.signal.kind, (kept.signal.id,), status, facts)


def _refusal(kept: KeptSignal) -> Refusal:
    assert kept.code is not None, f"signal {kept.signal.id} was refused without a reason"
    assert kept.message is not None, f"signal {kept.signal.id} was refused without a sentence"
    return Refusal(code=RefusalCode(kept.code), message=kept.message, position=kept.position)
