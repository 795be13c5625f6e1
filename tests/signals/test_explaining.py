from signals.explaining import Ask, explain
from signals.records import Origin
from signals.served import Run
from signals.spans import Span
from signals.weights import Trust, Weighing

SEQUENCE = tuple(range(10))
HUMAN = Weighing(0.5, Origin.HUMAN, Trust.AUTHENTICATED)
PEER = Weighing(1.0, Origin.PEER, Trust.APPROVED)
PEERS = PEER.weight * 0.5


def test_each_token_names_the_signal_whose_weight_it_has() -> None:
    asks = {
        "human": Ask(Run(SEQUENCE, Span(3, 5)), HUMAN),
        "peer": Ask(Run(SEQUENCE, Span(4, 7), (0.5,) * 3), PEER),
    }
    told = explain(prefix_tokens=2, targets=(3, 4, 5, 6), weights=(0.5, 0.5, PEERS, PEERS), asks=asks)
    assert [(one.position, one.token, one.weight) for one in told] == [
        (3, 3, 0.5),
        (4, 4, 0.5),
        (5, 5, PEERS),
        (6, 6, PEERS),
    ]
    assert [(one.signal, one.weighing, one.share) for one in told] == [
        ("human", HUMAN, 1.0),
        ("human", HUMAN, 1.0),
        ("peer", PEER, 0.5),
        ("peer", PEER, 0.5),
    ]


def test_a_row_without_a_target_is_no_token_that_is_learned() -> None:
    asks = {"human": Ask(Run(SEQUENCE, Span(3, 6), (1.0, 0.0, 1.0)), HUMAN)}
    told = explain(prefix_tokens=2, targets=(3, None, 5), weights=(0.5, 0.0, 0.5), asks=asks)
    assert [one.position for one in told] == [3, 5]


def test_a_token_whose_source_is_not_found_again_is_told_all_the_same() -> None:
    (told,) = explain(prefix_tokens=2, targets=(3,), weights=(0.5,), asks={})
    assert (told.token, told.weight, told.signal, told.weighing, told.share) == (3, 0.5, None, None, None)
