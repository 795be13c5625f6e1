import pytest

from signals.records import Origin
from signals.weights import SOURCE_FACTORS, token_weight


def test_every_origin_has_the_factor_of_the_design() -> None:
    assert SOURCE_FACTORS == {Origin.HUMAN: 1.0, Origin.TOOL: 0.8, Origin.PEER: 0.5, Origin.SELF: 0.25}
    assert set(SOURCE_FACTORS) == set(Origin)


def test_a_weight_is_relevance_times_source_factor() -> None:
    assert token_weight(0.5, Origin.TOOL) == 0.4


@pytest.mark.parametrize("relevance", [-0.1, 1.1, float("nan")])
def test_a_relevance_outside_0_to_1_is_our_own_fault(relevance: float) -> None:
    with pytest.raises(AssertionError, match="outside 0 to 1"):
        token_weight(relevance, Origin.HUMAN)
