from typing import Any

import pytest

from signals.policy import AgentPolicy
from signals.records import Action, Engram, Labels, Origin
from signals.weights import SOURCE_FACTORS, TRUST_FACTORS, Trust, Weighing, trust_in, weighing_of

NONE = AgentPolicy()


def test_every_origin_has_the_factor_of_the_design() -> None:
    assert SOURCE_FACTORS == {Origin.HUMAN: 1.0, Origin.TOOL: 0.8, Origin.PEER: 0.5, Origin.SELF: 0.25}
    assert set(SOURCE_FACTORS) == set(Origin)


def test_every_level_of_trust_has_a_factor_and_only_the_untrusted_is_silenced() -> None:
    assert TRUST_FACTORS == {
        Trust.UNTRUSTED: 0.0,
        Trust.AUTHENTICATED: 1.0,
        Trust.APPROVED: 1.0,
        Trust.SELF: 1.0,
    }
    assert set(TRUST_FACTORS) == set(Trust)


def test_a_weight_is_relevance_times_source_times_trust() -> None:
    assert Weighing(0.5, Origin.TOOL, Trust.AUTHENTICATED).weight == 0.4
    assert Weighing(0.5, Origin.TOOL, Trust.UNTRUSTED).weight == 0.0


@pytest.mark.parametrize("relevance", [-0.1, 1.1, float("nan")])
def test_a_relevance_outside_0_to_1_is_our_own_fault(relevance: float) -> None:
    with pytest.raises(AssertionError, match="outside 0 to 1"):
        Weighing(relevance, Origin.HUMAN, Trust.AUTHENTICATED)


@pytest.mark.parametrize("sender", [Trust.AUTHENTICATED, Trust.APPROVED])
def test_a_source_is_trusted_as_its_sender_unless_it_is_herself_or_named_as_untrusted(sender: Trust) -> None:
    wary = AgentPolicy(untrusted_origins=frozenset({Origin.PEER, Origin.SELF}))
    assert trust_in(Origin.HUMAN, sender, wary) is sender
    assert trust_in(Origin.PEER, sender, wary) is Trust.UNTRUSTED
    assert trust_in(Origin.SELF, sender, wary) is Trust.UNTRUSTED
    assert trust_in(Origin.SELF, sender, NONE) is Trust.SELF


def test_what_a_signal_weighs_is_its_own_relevance_or_the_latest_told() -> None:
    engram = Engram(id="e", agent="ada", turn="t", origin=Origin.TOOL, relevance=0.5, message=0)
    asked: dict[str, Any] = {"sender": Trust.APPROVED, "policy": NONE}
    assert weighing_of(engram, relevance=None, **asked) == Weighing(0.5, Origin.TOOL, Trust.APPROVED)
    assert weighing_of(engram, relevance=0.0, **asked).relevance == 0.0


def test_an_action_is_her_own_word_and_labels_weigh_by_themselves() -> None:
    asked: dict[str, Any] = {"relevance": None, "sender": Trust.AUTHENTICATED, "policy": NONE}
    action = Action(id="a", agent="ada", turn="t", relevance=0.5)
    labels = Labels(id="l", agent="ada", turn="t", labels=[{"message": 0, "weight": 0.5}])
    assert weighing_of(action, **asked) == Weighing(0.5, Origin.SELF, Trust.SELF)
    assert weighing_of(labels, **asked) == Weighing(1.0, Origin.HUMAN, Trust.AUTHENTICATED)
