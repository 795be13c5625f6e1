"""Whose policy is what: what the lane was started with, and what operators have put through the API since.

- A policy put through the API is that agent's from then on, whatever files and flags say at later starts, until an
  operator takes it back. It is kept as a row of the ledger: the last about an agent counts.
- Flags are shorthand: they stand below the file's `[default]`, and `--learn` beside an agent's own table.
"""

import tomllib
from pathlib import Path

from pydantic import ValidationError

from daemon.config import ConfigError, Settings
from signals.policy import AgentPolicy, Policy, PolicyTable, PolicyTables
from signals.records import Origin
from store import policies as stored
from store.store import Store

NOTHING = PolicyTable()
"""A table that leaves out everything."""


class Policies:
    """The policies that count now."""

    def __init__(self, store: Store, begun: Policy) -> None:
        self._store = store
        self._begun = begun
        self._put: dict[str, AgentPolicy] = {}

    async def load(self) -> None:
        """Read what was put through the API before this start."""
        kept = await self._store.read(stored.policies)
        self._put = {agent: AgentPolicy.model_validate(body) for agent, body in kept.items()}

    @property
    def now(self) -> Policy:
        """All of them."""
        return self._begun.model_copy(update={"agents": {**self._begun.agents, **self._put}})

    def of(self, agent: str) -> AgentPolicy:
        """The policy that counts for an agent."""
        return self._put.get(agent) or self._begun.of(agent)

    def is_private(self, agent: str, context: str) -> bool:
        """Does the agent's policy say that a context of hers is private?"""
        return self.of(agent).is_private(context)

    def is_put(self, agent: str) -> bool:
        """Was the agent's policy put through the API?"""
        return agent in self._put

    async def put(self, agent: str, table: PolicyTable) -> AgentPolicy:
        """Give an agent a policy of her own; what the table leaves out is as in the default."""
        policy = table.over(self._begun.default)
        await self._store.write(stored.put_policy, agent, policy.model_dump(mode="json"))
        self._put[agent] = policy
        return policy

    async def take_back(self, agent: str) -> AgentPolicy:
        """Have files and flags say again what an agent's policy is.

        Raises:
            Unknown: none was put for her.
        """
        await self._store.write(stored.take_back_policy, agent)
        self._put.pop(agent, None)
        return self.of(agent)


def begun_policy(settings: Settings) -> Policy:
    """What file and flags say.

    Raises:
        ConfigError: the file cannot be used, or says that an agent does not learn and `--learn` that she does.
    """
    origins = frozenset(Origin(origin) for origin in settings.untrusted)
    base = AgentPolicy(untrusted_origins=origins, max_lesson_tokens=settings.max_lesson_tokens)
    tables = PolicyTables() if settings.policy is None else _read(settings.policy)
    for agent in settings.learn:
        if tables.agents.get(agent, NOTHING).learn is False:
            said = f"--learn {agent}: --policy {settings.policy} says that it does not learn; change one of them"
            raise ConfigError(said)
    named = {
        agent: tables.agents.get(agent, NOTHING).model_copy(update={"learn": True}) for agent in settings.learn
    }
    return PolicyTables(default=tables.default, agents={**tables.agents, **named}).over(base)


def _read(path: Path) -> PolicyTables:
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--policy {path} cannot be read: {error}") from error
    try:
        return PolicyTables.model_validate(tables)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"--policy {path}: {field}: {first['msg']}; a table is [default] or [agents.NAME], and has some of "
            f"{', '.join(PolicyTable.model_fields)}"
        ) from error
