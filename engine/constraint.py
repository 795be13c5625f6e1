"""What a reply may go on with: a constraint on its tokens, as a grammar makes one. The engine knows no grammar.

- A constraint belongs to one turn. Before each token it is asked what may come, after each it is told what came.
- Once it has ended nothing but the reply's end may follow, and the turn ends with `stop`.
- One that raises ends its own turn as failed, and no other.
"""

from typing import Protocol

from torch import Tensor

from engine.errors import EngineError


class ConstraintFailed(EngineError):
    """The constraint cannot say what may come next."""


class Constraint(Protocol):
    """What the tokens of one reply must keep to."""

    @property
    def ended(self) -> bool:
        """May nothing follow but the reply's end?"""
        ...

    def mask(self, logits: Tensor) -> None:
        """Set to −inf, in place, the logits [V] of every token that may not come next.

        End tokens are masked like others: they stay where the reply may end.

        Raises:
            ConstraintFailed: it cannot say.
        """
        ...

    def take(self, token: int) -> None:
        """Be told the token that was drawn.

        Raises:
            ConstraintFailed: the token is not one that could come.
        """
        ...
