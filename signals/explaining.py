"""Explaining: where the weight of each of a lesson's tokens comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from signals.served import Run
from signals.weights import Weighing


@dataclass(frozen=True, slots=True)
class Ask:
    """What one signal asks for: these tokens, with these weights, each times its share."""

    run: Run
    weighing: Weighing

    def weight(self, position: int) -> float:
        """The weight that the token at a position of the turn gets from it."""
        span = self.run.span
        return self.weighing.weight * self.run.share(position) if span.start <= position < span.end else 0.0


@dataclass(frozen=True, slots=True)
class ExplainedToken:
    """A token that is learned, by its position in the turn; the signal whose weight it has, if one is found."""

    position: int
    token: int
    weight: float
    signal: str | None
    weighing: Weighing | None
    share: float | None
    """What a label of that signal says of this very token."""


def explain(
    *, prefix_tokens: int, targets: Sequence[int | None], weights: Sequence[float], asks: Mapping[str, Ask]
) -> tuple[ExplainedToken, ...]:
    """Say of each token that a lesson learns which of the signals that make it gives it its weight."""
    rows = enumerate(zip(targets, weights, strict=True), start=prefix_tokens + 1)
    return tuple(_token(at, target, weight, asks) for at, (target, weight) in rows if target is not None)


def _token(position: int, token: int, weight: float, asks: Mapping[str, Ask]) -> ExplainedToken:
    signal = max(asks, key=lambda name: asks[name].weight(position), default=None)
    if signal is None or asks[signal].weight(position) == 0:
        return ExplainedToken(position, token, weight, None, None, None)
    ask = asks[signal]
    return ExplainedToken(position, token, weight, signal, ask.weighing, ask.run.share(position))
