"""How much a label weighs: the relevance of what it says, times the factor of who said it.

Every factor is in (0, 1], so that a weight never exceeds the relevance and only a relevance of 0 silences.
"""

from collections.abc import Mapping
from types import MappingProxyType

from signals.records import Origin

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


def token_weight(relevance: float, origin: Origin) -> float:
    """Return the weight of one label whose signal has this ``relevance`` (0 to 1) and ``origin``."""
    assert 0.0 <= relevance <= 1.0, f"relevance {relevance} is outside 0 to 1"
    return relevance * SOURCE_FACTORS[origin]
