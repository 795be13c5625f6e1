"""Policy: who learns, and what never trains, agent by agent.

* Learning is opted into: an agent that no policy lets learn does not.
* Privacy only adds: a turn served as private stays private whatever the policy says.
* What an agent's table leaves out is as in the default's, and what that leaves out as the lane was started with.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from signals.records import AgentName, ContextName, Origin
from signals.refusals import Refusal, RefusalCode

MAX_LESSON_TOKENS = 2048
"""Tokens of a lesson, unless a policy says otherwise: the longest reply that is worth learning as one."""


class AgentPolicy(BaseModel):
    """What an operator allows one agent to learn. By itself it allows nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: bool = False
    untrusted_origins: frozenset[Origin] = frozenset()
    """Sources whose signals are kept but never learned."""
    private_contexts: frozenset[ContextName] = frozenset()
    """Contexts of hers that are private, besides those that a turn made so."""
    max_lesson_tokens: Annotated[int, Field(ge=1)] = MAX_LESSON_TOKENS

    def is_private(self, context: str) -> bool:
        """Tell whether a context of the agent's is private."""
        return context in self.private_contexts


class PolicyTable(BaseModel):
    """An agent's policy as it is written: what it leaves out is as in the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: bool | None = None
    untrusted_origins: frozenset[Origin] | None = None
    private_contexts: frozenset[ContextName] | None = None
    max_lesson_tokens: Annotated[int, Field(ge=1)] | None = None

    def over(self, base: AgentPolicy) -> AgentPolicy:
        """The policy that the table makes over ``base``."""
        return base.model_copy(update=self.model_dump(exclude_none=True))


class Policy(BaseModel):
    """Each agent's policy, and that of an agent who has none of her own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: AgentPolicy = AgentPolicy()
    agents: Mapping[AgentName, AgentPolicy] = {}

    def of(self, agent: str) -> AgentPolicy:
        """The policy that counts for an agent."""
        return self.agents.get(agent, self.default)

    def learns(self, agent: str) -> bool:
        """Tell whether an agent may learn."""
        return self.of(agent).learn


class PolicyTables(BaseModel):
    """A policy as it is written: tables that may leave out what is as in the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: PolicyTable = PolicyTable()
    agents: Mapping[AgentName, PolicyTable] = {}

    def over(self, base: AgentPolicy) -> Policy:
        """The policy that these tables make over ``base``."""
        default = self.default.over(base)
        return Policy(default=default, agents={name: own.over(default) for name, own in self.agents.items()})


def policy_off(agent: str) -> Refusal:
    """Say that no policy lets ``agent`` learn."""
    message = f"No policy lets agent {agent} learn. Name it among the agents that do."
    return Refusal(code=RefusalCode.POLICY_OFF, message=message)
