"""Whether a turn can be served as asked: what would fail on the lane is refused before it is queued."""

from collections.abc import Iterable

from engine.engine import Engine
from engine.errors import TurnRejected
from engine.orders import TurnOrder
from engine.sampling import Sampler
from engine.slots import BASE


def check_order(order: TurnOrder, engine: Engine) -> None:
    """Refuse a turn that the engine cannot serve as asked.

    Raises:
        TurnRejected: the prompt is empty, leaves no room for a reply or has unknown tokens; the stable set or the
            slot asked for is not there; logit_bias has unknown tokens; a sampling parameter is out of its range.
    """
    context = engine.settings.context_tokens
    if order.stable != BASE and order.stable not in engine.bank:
        raise TurnRejected(f"the stable set {order.stable!r} is not on this lane; ask for one that is")
    if not 0 < len(order.tokens) < context:
        raise TurnRejected(
            f"the prompt has {len(order.tokens)} tokens; a slot's context holds {context} and a reply "
            f"needs at least one: send between 1 and {context - 1} tokens"
        )
    _check_known("the prompt has", order.tokens, engine.model.vocabulary)
    if order.slot is not None and not 0 <= order.slot < len(engine.slots):
        raise TurnRejected(f"slot {order.slot} was asked for; this lane has slots 0 to {len(engine.slots) - 1}")
    _check_sampling(order, engine.model.vocabulary)


def _check_sampling(order: TurnOrder, vocabulary: int) -> None:
    _check_known("logit_bias names", (token for token, _ in order.sampling.logit_bias), vocabulary)
    try:
        Sampler(order.sampling)
    except ValueError as error:  # transformers' own sentence names the parameter and its range
        raise TurnRejected(f"the tokens cannot be drawn as asked: {error}") from error


def _check_known(what: str, tokens: Iterable[int], vocabulary: int) -> None:
    unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise TurnRejected(f"{what} token {unknown}; this model has tokens 0 to {vocabulary - 1}: leave it out")
