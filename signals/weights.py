"""How much a label weighs: the relevance of what it says, times the factors of who said it and of who tells it.

Every factor is at most 1, so that a weight never exceeds the relevance. A source's factor is above 0; of the
levels of trust only `untrusted` silences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from signals.policy import AgentPolicy
from signals.records import Action, Labels, Origin
from signals.runs import LessonSignal

HUMAN_FACTOR = 1.0
"""What a person said is what there is to learn from, in full."""

TOOL_FACTOR = 0.8
"""What a tool returned is fact, but as often noise as substance."""

PEER_FACTOR = 0.5
"""What another agent said is hearsay: worth half a person's word."""

SELF_FACTOR = 0.25
"""What she said herself she can already say: learned gently, or she learns to echo."""

SOURCE_FACTORS: Mapping[Origin, float] = MappingProxyType(
    {
        Origin.HUMAN: HUMAN_FACTOR,
        Origin.TOOL: TOOL_FACTOR,
        Origin.PEER: PEER_FACTOR,
        Origin.SELF: SELF_FACTOR,
    }
)


class Trust(StrEnum):
    """How far the source of a signal is trusted, by who sent it and by the agent's policy."""

    UNTRUSTED = "untrusted"
    AUTHENTICATED = "authenticated"
    APPROVED = "approved"
    SELF = "self"


UNTRUSTED_FACTOR = 0.0
"""What comes from an origin that the policy names as untrusted is kept, and never learned."""

AUTHENTICATED_FACTOR = 1.0
"""The agent tells it, by her own key or where none is asked for, and is believed about what she was served."""

APPROVED_FACTOR = 1.0
"""An operator tells it with a key: there is nobody above to believe more, and no weight exceeds the relevance."""

SELF_TRUST_FACTOR = 1.0
"""That it is her own word has made its source's factor small already, and is not counted twice."""

TRUST_FACTORS: Mapping[Trust, float] = MappingProxyType(
    {
        Trust.UNTRUSTED: UNTRUSTED_FACTOR,
        Trust.AUTHENTICATED: AUTHENTICATED_FACTOR,
        Trust.APPROVED: APPROVED_FACTOR,
        Trust.SELF: SELF_TRUST_FACTOR,
    }
)


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a label's weight is made of."""

    relevance: float
    origin: Origin
    trust: Trust

    def __post_init__(self) -> None:
        assert 0.0 <= self.relevance <= 1.0, f"relevance {self.relevance} is outside 0 to 1"

    @property
    def source_factor(self) -> float:
        """The factor of who said what is learned."""
        return SOURCE_FACTORS[self.origin]

    @property
    def trust_factor(self) -> float:
        """The factor of how far the source is trusted."""
        return TRUST_FACTORS[self.trust]

    @property
    def weight(self) -> float:
        """The weight of a label."""
        return self.relevance * self.source_factor * self.trust_factor


def weighing_of(signal: LessonSignal, *, relevance: float | None, sender: Trust, policy: AgentPolicy) -> Weighing:
    """What the weights of a signal's labels are made of, before each label's own share.

    ``relevance`` is the latest one told, in place of the signal's own; ``sender`` the trust in who sent it.
    """
    told = 1.0 if isinstance(signal, Labels) else signal.relevance
    origin = origin_of(signal)
    return Weighing(told if relevance is None else relevance, origin, trust_in(origin, sender, policy))


def origin_of(signal: LessonSignal) -> Origin:
    """Who said what the signal asks to have learned: of an action, the agent herself."""
    return Origin.SELF if isinstance(signal, Action) else signal.origin


def trust_in(origin: Origin, sender: Trust, policy: AgentPolicy) -> Trust:
    """How far what comes from an origin is trusted when that sender tells it."""
    if origin in policy.untrusted_origins:
        return Trust.UNTRUSTED
    return Trust.SELF if origin is Origin.SELF else sender
