from typing import Any

import pytest
from pydantic import ValidationError

from signals.policy import MAX_LESSON_TOKENS, AgentPolicy, Policy, PolicyTables
from signals.records import Origin


def test_without_a_word_nobody_learns() -> None:
    assert not Policy().learns("ada")


def test_only_who_is_named_learns() -> None:
    policy = Policy(agents={"ada": AgentPolicy(learn=True)})
    assert policy.learns("ada")
    assert not policy.learns("Ada")


def test_by_itself_a_policy_trusts_every_origin_and_hides_nothing() -> None:
    made = AgentPolicy()
    assert (made.untrusted_origins, made.private_contexts) == (frozenset(), frozenset())
    assert made.max_lesson_tokens == MAX_LESSON_TOKENS


def test_a_table_stands_over_the_default_and_that_over_the_start() -> None:
    tables = PolicyTables.model_validate(
        {
            "default": {"untrusted_origins": ["peer"], "private_contexts": ["diary"]},
            "agents": {"ada": {"learn": True, "private_contexts": []}, "bob": {"max_lesson_tokens": 7}},
        }
    )
    policy = tables.over(AgentPolicy(max_lesson_tokens=50))
    peers = frozenset({Origin.PEER})
    assert policy.of("ada") == AgentPolicy(learn=True, untrusted_origins=peers, max_lesson_tokens=50)
    assert policy.of("bob").max_lesson_tokens == 7
    assert policy.of("eve") == policy.default
    assert policy.default.private_contexts == {"diary"}


@pytest.mark.parametrize(
    "tables",
    [
        {"agents": {"ada": {"lern": True}}},
        {"agents": {"ada": {"max_lesson_tokens": 0}}},
        {"default": {"untrusted_origins": ["rumour"]}},
    ],
)
def test_a_field_or_value_that_is_none_is_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PolicyTables.model_validate(tables)


def test_a_name_that_is_no_agents_is_refused() -> None:
    with pytest.raises(ValidationError):
        PolicyTables.model_validate({"agents": {"a b": {}}})
