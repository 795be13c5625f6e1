"""The closed sets of words the tables use, spelled as they are stored.

* A signal goes `received → planned → riding → learned`, or ends `refused`, or ends `applied` when it only
  changes how others are weighed. One that is forgotten is `refused`, whatever it was before.
* A lesson goes `planned → riding → learned`, or ends `refused`; a crash puts `riding` back to `planned`.
* Of one agent's adapters exactly one is the `shadow` and exactly one is `stable`; the others are `kept`.
"""

from enum import StrEnum


class SignalState(StrEnum):
    """Where a signal stands."""

    RECEIVED = "received"
    PLANNED = "planned"
    RIDING = "riding"
    LEARNED = "learned"
    REFUSED = "refused"
    APPLIED = "applied"


class LessonState(StrEnum):
    """Where a lesson stands."""

    PLANNED = "planned"
    RIDING = "riding"
    LEARNED = "learned"
    REFUSED = "refused"


class Role(StrEnum):
    """What a signal does for a lesson: only one that makes it is consumed by it."""

    MAKES = "makes"
    WEIGHS = "weighs"
    FREES = "frees"


class AdapterState(StrEnum):
    """What an adapter is to its agent."""

    SHADOW = "shadow"
    STABLE = "stable"
    KEPT = "kept"


class LedgerKind(StrEnum):
    """What a ledger row tells of."""

    TURN = "turn"
    SIGNAL = "signal"
    LESSON = "lesson"
    STEP = "step"
    REFUSAL = "refusal"
    PROMOTION = "promotion"
    ROLLBACK = "rollback"
    EXPORT = "export"
    POLICY = "policy"
    ARCHIVE = "archive"
    FORGOT = "forgot"
