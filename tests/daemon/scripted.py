"""A tiny model that says what a test wants it to: a constraint that leaves one token at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from daemon.serving.turns import Turns
from engine.orders import TurnOrder

Says = Callable[..., None]


class Script:
    """Lets a reply be these tokens and nothing else."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = list(tokens)

    @property
    def ended(self) -> bool:
        return not self._left

    def mask(self, logits: Tensor) -> None:
        kept = logits[self._left[0]].clone()
        logits.fill_(-torch.inf)
        logits[self._left[0]] = kept

    def take(self, token: int) -> None:
        assert token == self._left.pop(0)


def scripted(monkeypatch: pytest.MonkeyPatch, encode: Callable[[str], Any], end_token: int) -> Says:
    """Make a function that says what the next turns reply, in order; after that the model is itself again."""
    texts: list[str] = []
    order_of = Turns._order

    def order(self: Turns, *args: Any) -> TurnOrder:
        made = order_of(self, *args)
        if not texts:
            return made
        tokens = [*encode(texts.pop(0)), end_token]
        return replace(made, constraint=lambda: Script(tokens))

    monkeypatch.setattr(Turns, "_order", order)
    return lambda *replies: texts.extend(replies)
