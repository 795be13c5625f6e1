"""What a lane is asked to do, and what it says happened: plain values that travel between threads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from engine.constraint import Constraint
from engine.errors import LessonRefused
from engine.sampling import Sampling, TokenLogprob
from engine.served import ServedPrefix
from engine.slots import BASE
from engine.walk import LessonLearned

EndReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """One completion to serve: prompt token ids, how to draw the reply, and when to end it.

    `constraint` makes what the reply must keep to, anew for this turn; it is called on the lane's thread.
    A turn on `hold` keeps its slot after its end, so that a lesson may start there, until it is let go.
    """

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    end_tokens: frozenset[int] = frozenset()
    stable: str = BASE
    slot: int | None = None
    constraint: Callable[[], Constraint] | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True)
class LessonOrder:
    """One lesson to learn: the prefix it needs, token by token, and its run.

    `rides` names the turn that carries it, live or on hold; without one it runs in a gap, on whichever slot holds
    the prefix.
    `lr` is the learning rate of its step, if not the shadow's own.
    """

    id: str
    shadow: str
    stable: str
    prefix: tuple[int, ...]
    tokens: tuple[int, ...]
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    rides: str | None = None
    lr: float | None = None


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The turn has a slot; `cached_tokens` of its prompt were there already."""

    turn: str
    slot: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokenServed:
    """One more token of the reply, and the text that has become certain with it (often empty).

    `logprob` is there if the turn's sampling asks for it.
    """

    turn: str
    token: int
    text: str
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over, and its slot free unless it is on hold.

    `text` is the rest not yet sent; `reply` the whole reply.
    Times are in seconds since the turn was submitted; `first_token_seconds` is None if none came.
    `stop` is the stop string that ended it, if one did.
    """

    turn: str
    reason: EndReason
    text: str = ""
    reply: str = ""
    reply_tokens: tuple[int, ...] = ()
    slot: int | None = None
    cached_tokens: int = 0
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    error: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class LessonStarted:
    """The lesson's rows have been taken by a batch; it walks from now on."""

    lesson: str
    slot: int
    turn: str | None


@dataclass(frozen=True, slots=True)
class LessonEnded:
    """What became of a lesson. A learned one brings the shadow's snapshot, to be put on disk, and how its prefix
    was served.

    `held_up_seconds` is how long its segments ran while turns were being served, which had to wait for them.
    """

    lesson: str
    outcome: LessonLearned | LessonRefused
    held_up_seconds: float
    snapshot: dict[str, Tensor] | None = None
    prefix: ServedPrefix | None = None


Event = TurnStarted | TokenServed | TurnEnded | LessonStarted | LessonEnded
