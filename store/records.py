"""What goes into the store and comes out of it: plain frozen values, with no session behind them.

* Times are microseconds since 1970 in UTC (`_us`), spans are milliseconds (`_ms`).
* A refusal is a code, a sentence and where it applies a position; the code is any string here, its enum is
  the caller's.
* Fields are named as the columns they go to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from store.columns import JsonValue
from store.words import AdapterState, LedgerKind, LessonState, Role, SignalState

Body = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion request, served. A private turn keeps its counts and times, and nothing said in it.

    One that is open has no `finish_reason` yet, and nothing that its end tells.
    """

    id: str
    agent: str
    context: str
    private: bool
    lane: str
    """The lane that served it."""
    slot: int | None
    """None while it is open, and for good if it never came to one."""
    adapter: str
    """The name of the stable set that it was served with."""
    messages: JsonValue
    """The messages as they came, or None: a plain completion has none."""
    template_args: Body | None
    prompt_tokens: tuple[int, ...] | None
    reply_tokens: tuple[int, ...] | None
    reply_text: str | None
    prompt_token_count: int
    reply_token_count: int
    cached_token_count: int
    """How many of the prompt's rows were already in the slot's cache."""
    finish_reason: str | None
    created_at_us: int
    first_token_ms: float | None
    """None when the turn ended before its first token."""
    total_ms: float | None
    """None while it is open, and for good if a crash ended it."""

    def __post_init__(self) -> None:
        for tokens, count in (
            (self.prompt_tokens, self.prompt_token_count),
            (self.reply_tokens, self.reply_token_count),
        ):
            assert tokens is None or len(tokens) == count, f"turn {self.id}: {len(tokens)} tokens, not {count}"
        cached = self.cached_token_count
        assert 0 <= cached <= self.prompt_token_count, f"turn {self.id}: {cached} tokens of its prompt cached"

    @property
    def is_forgotten(self) -> bool:
        """Is what was said in it erased?"""
        return self.prompt_tokens is None and not self.private

    def without_words(self) -> Self:
        """The same turn with everything taken out that was said in it."""
        return replace(
            self, messages=None, template_args=None, prompt_tokens=None, reply_tokens=None, reply_text=None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """An event the agent emitted, as it is kept. Of a private signal the body is not kept."""

    id: str
    agent: str
    context: str
    kind: str
    turn: str | None
    """The turn it speaks of; it may be one that the store has never seen."""
    engram: str | None
    """The engram it speaks of, when it is a relevance."""
    at_us: int
    """When it happened, by the client's clock."""
    body: Body | None
    fingerprint: str
    """SHA-256 of what the client sent: the same id with another fingerprint is a conflict."""
    sender: str = "authenticated"
    """How far who sent it is trusted."""
    private: bool = False


@dataclass(frozen=True, slots=True)
class RefusedSignal:
    """Why a signal makes no lesson."""

    id: str
    code: str
    message: str
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSignal:
    """A signal as it stands: which lesson it makes, and when that was learned, the step and its loss."""

    signal: Signal
    state: SignalState
    received_at_us: int
    lesson: str | None = None
    code: str | None = None
    message: str | None = None
    position: int | None = None
    step: str | None = None
    step_number: int | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    """None also where it was not measured."""


@dataclass(frozen=True, slots=True)
class Put:
    """What became of one signal that was put: `same` is a retry, `conflict` an id taken by another body."""

    status: Literal["new", "same", "conflict"]
    kept: KeptSignal
    """As it now is; of a conflict, the one that was there."""

    @property
    def id(self) -> str:
        """The signal's id."""
        return self.kept.signal.id

    @property
    def state(self) -> SignalState:
        """Where it stands."""
        return self.kept.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One run of labelled rows after a served prefix: row i is fed `tokens[i]` and predicts `targets[i]`.

    The prefix is the first `prefix_token_count` ids of the turn's prompt and reply.
    """

    id: str
    agent: str
    context: str
    turn: str
    kind: str
    prefix_token_count: int
    tokens: tuple[int, ...]
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    lr: float | None = None
    """The learning rate of its step, if not the shadow's own."""

    def __post_init__(self) -> None:
        rows = len(self.tokens), len(self.targets), len(self.weights)
        assert len(set(rows)) == 1, f"lesson {self.id}: tokens, targets, weights of {rows} rows"
        assert rows[0] > 0, f"lesson {self.id} has no row"
        assert self.prefix_token_count >= 0, f"lesson {self.id}: a prefix of {self.prefix_token_count} tokens"


@dataclass(frozen=True, slots=True)
class Link:
    """A signal of a lesson, and what it does for it."""

    signal: str
    role: Role


@dataclass(frozen=True, slots=True)
class PlannedLesson:
    """A lesson to be kept, and the signals it is planned from."""

    lesson: Lesson
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLesson:
    """A lesson as it stands, with the prefix it needs: everything that doing it again takes."""

    lesson: Lesson
    prefix: tuple[int, ...]
    links: tuple[Link, ...]
    state: LessonState
    planned_at_us: int
    ridden_turn: str | None
    code: str | None
    message: str | None
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the optimizer did with one lesson. What was learned is the lesson's, and is not said twice."""

    id: str
    lesson: str
    loss_before: float
    row_losses_before: tuple[float | None, ...]
    """Of each row of the lesson, before its weight; None where it has no label, or one of weight 0."""
    loss_after: float | None
    """None where it was not measured, as `row_losses_after`."""
    row_losses_after: tuple[float | None, ...] | None
    kl_served: float | None
    gradient_norm: float
    optimizer: str
    hyperparameters: Body
    lr: float
    chunk_rows: int
    shadow_before: str
    """SHA-256 of the shadow that the step was made from: it must be the agent's head."""
    shadow_after: str
    snapshot: str
    """The file of the shadow after, relative to the data directory."""
    learning_ms: float
    waited_ms: float
    """How long its segments ran while turns were being served, which had to wait for them."""
    peak_bytes: int
    served: Body
    """How its prefix was served: the slot, and runs of rows with the shapes of their passes."""
    made_by: Body
    """The model, the machine and the lane that took it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStep:
    """A committed step: the agent's first is number 1. It holds its labels even when the lesson is gone.

    `stable` is the name of the set that its prefix was served with. One that is `forgotten` says nothing of what
    was learned, and is in no adapter: the shadow after it is the one before it.
    """

    step: Step
    agent: str
    number: int
    signals: tuple[str, ...]
    prefix_turn: str
    prefix_token_count: int
    tokens: tuple[int, ...]
    targets: tuple[int | None, ...]
    weights: tuple[float, ...]
    stable: str
    forgotten: bool
    created_at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter of an agent. The shadow has no version; version 0 is what the agent began with."""

    agent: str
    state: AdapterState
    version: int | None
    sha: str
    snapshot: str
    step_number: int
    """The last step in it; 0 when none is."""
    created_at_us: int


@dataclass(frozen=True, slots=True)
class Adapters:
    """An agent's shadow, the version being served, and every version in order, the served one included."""

    shadow: Adapter
    stable: Adapter
    versions: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a ledger row tells. The body holds counts, hashes, names and reasons, no private word."""

    kind: LedgerKind
    agent: str
    context: str | None
    subject: str
    """The id of what it speaks of."""
    body: Body
    code: str | None = None
    """Why, of a refusal."""

    def __post_init__(self) -> None:
        assert self.code is None or self.kind is LedgerKind.REFUSAL, f"{self.kind} {self.subject} has {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One row of the ledger, `previous` being the SHA-256 of the row before it."""

    seq: int
    at_us: int
    kind: LedgerKind
    agent: str
    context: str | None
    code: str | None
    subject: str
    body: Body
    previous: str
    sha: str
