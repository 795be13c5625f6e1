"""Records with everything filled in that a test does not speak of."""

from sqlalchemy.orm import Session

from store.adapters import open_adapter
from store.lessons import begin_ride, plan_lesson
from store.records import Lesson, Link, Signal, Step, Turn
from store.signals import put_signals
from store.turns import record_turn
from store.words import Role

PROMPT = (11, 12, 13, 200_001, 15)
REPLY = (21, 22, 23)
SECRET = "the cellar key"


def a_turn(
    turn_id: str = "t1", *, agent: str = "ada", context: str = "room", private: bool = False, at_us: int = 1_000
) -> Turn:
    return Turn(
        id=turn_id,
        agent=agent,
        context=context,
        private=private,
        lane="alone",
        slot=0,
        adapter="base",
        messages=[{"role": "user", "content": SECRET}],
        template_args={"documents": [SECRET]},
        prompt_tokens=PROMPT,
        reply_tokens=REPLY,
        reply_text=SECRET,
        prompt_token_count=len(PROMPT),
        reply_token_count=len(REPLY),
        cached_token_count=2,
        finish_reason="stop",
        created_at_us=at_us,
        first_token_ms=4.5,
        total_ms=31.25,
    )


def a_signal(
    signal_id: str = "s1",
    *,
    kind: str = "engram",
    agent: str = "ada",
    context: str = "room",
    turn: str | None = "t1",
    engram: str | None = None,
    fingerprint: str = "f1",
    private: bool = False,
) -> Signal:
    return Signal(
        id=signal_id,
        agent=agent,
        context=context,
        kind=kind,
        turn=turn,
        engram=engram,
        at_us=5,
        body={"quote": SECRET, "relevance": 0.7},
        fingerprint=fingerprint,
        private=private,
    )


def a_lesson(lesson_id: str = "l1", *, turn: str = "t1", prefix: int = 4, agent: str = "ada") -> Lesson:
    return Lesson(
        id=lesson_id,
        agent=agent,
        context="room",
        turn=turn,
        kind="action",
        prefix_token_count=prefix,
        tokens=(15, 21, 22),
        targets=(21, None, 0),
        weights=(0.25, 0.0, 0.1),
    )


def a_step(step_id: str = "x1", *, lesson: str = "l1", before: str = "sha0", after: str = "sha1") -> Step:
    return Step(
        id=step_id,
        lesson=lesson,
        loss_before=2.5,
        row_losses_before=(2.5, None, 0.125),
        loss_after=1.5,
        row_losses_after=(1.5, None, 0.0625),
        kl_served=None,
        gradient_norm=0.75,
        optimizer="adamw",
        hyperparameters={"betas": [0.9, 0.999], "eps": 1e-8},
        lr=1e-4,
        chunk_rows=64,
        shadow_before=before,
        shadow_after=after,
        snapshot=f"shadow/{after}.safetensors",
        learning_ms=120.5,
        waited_ms=3.5,
        peak_bytes=2**33,
        served={"slot": 0, "runs": [[4, 4]]},
        made_by={"model": "tiny"},
    )


def ready(session: Session) -> None:
    """A turn, a signal that makes a lesson, and the agent's adapters."""
    record_turn(session, a_turn())
    put_signals(session, [a_signal()])
    open_adapter(session, "ada", sha="sha0", snapshot="shadow/sha0.safetensors")
    plan_lesson(session, a_lesson(), signals=[Link("s1", Role.MAKES)])


def riding(session: Session) -> None:
    """As `ready`, and the lesson rides turn t2."""
    ready(session)
    begin_ride(session, "l1", turn="t2")


def next_lesson(session: Session, number: int) -> None:
    """Another lesson of the same turn, riding: its ids end in the number."""
    put_signals(session, [a_signal(f"s{number}")])
    plan_lesson(session, a_lesson(f"l{number}"), signals=[Link(f"s{number}", Role.MAKES)])
    begin_ride(session, f"l{number}", turn=None)
