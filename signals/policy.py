"""Policy: who learns, and what never trains.

* Learning is opted into by name: an agent that no policy names does not learn.
* Privacy only adds: a turn served as private stays private whatever the policy says.
"""

from pydantic import BaseModel, ConfigDict

from signals.records import Origin
from signals.refusals import Refusal, RefusalCode


class Policy(BaseModel):
    """What an operator allows to be learned. The default allows nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: frozenset[str] = frozenset()
    """The agents that learn."""
    private_contexts: frozenset[str] = frozenset()
    """Contexts that never train, besides the turns that were themselves served as private."""
    untrusted_origins: frozenset[Origin] = frozenset()
    """Sources whose signals are kept but never learned."""

    def learns(self, agent: str) -> bool:
        """Tell whether ``agent`` was opted into learning."""
        return agent in self.agents

    def trusts(self, origin: Origin) -> bool:
        """Tell whether what comes from ``origin`` may be learned."""
        return origin not in self.untrusted_origins


def policy_off(agent: str) -> Refusal:
    """Say that no policy opts ``agent`` in."""
    message = f"No policy lets agent {agent} learn. Name it among the agents that do."
    return Refusal(code=RefusalCode.POLICY_OFF, message=message)
