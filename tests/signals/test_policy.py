from signals.policy import Policy
from signals.records import Origin


def test_without_a_word_nobody_learns() -> None:
    assert not Policy().learns("ada")


def test_only_who_is_named_learns() -> None:
    policy = Policy(agents=frozenset({"ada"}))
    assert policy.learns("ada")
    assert not policy.learns("Ada")


def test_every_origin_is_trusted_until_one_is_named() -> None:
    assert all(Policy().trusts(origin) for origin in Origin)
    assert not Policy(untrusted_origins=frozenset({Origin.PEER})).trusts(Origin.PEER)
