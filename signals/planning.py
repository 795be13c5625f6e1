"""Planning: a signal and its turn in, a lesson plan or a refusal out. Pure.

* Who may learn what is decided first, before anything of the turn is looked at or told.
* The token shift is made here and nowhere else: a run begins at the row that predicts its first target.
* A plan that is returned can be carried as it is; what stands against one is a refusal, never an exception.
"""

from typing import assert_never

from signals.plans import LessonPlan
from signals.policy import AgentPolicy, policy_off
from signals.records import Action, Correction, Engram, Labels, Outcome, Turn
from signals.refusals import Refusal, RefusalCode, RefusalError
from signals.runs import LessonSignal, find_run
from signals.served import Run
from signals.spans import points_to_own_reply
from signals.tokens import ChatTokenizer, RenderError
from signals.weights import Trust, Weighing, origin_of, weighing_of


def plan(
    signal: LessonSignal,
    turn: Turn | None,
    *,
    policy: AgentPolicy,
    tokenizer: ChatTokenizer,
    context_tokens: int,
    private: bool = False,
    sender: Trust = Trust.AUTHENTICATED,
    relevance: float | None = None,
    outcome: Outcome = Outcome.UNKNOWN,
) -> LessonPlan | Refusal:
    """Plan the lesson that ``signal`` asks for, or say why there is none.

    ``turn`` is the turn it names, or None where no turn has that id or it names none; ``policy`` its agent's;
    ``context_tokens`` the size of the context that it would run in; ``private`` whether the signal's own is;
    ``sender`` the trust in who sent it; ``relevance`` the latest one told for an engram, in place of its own; and
    ``outcome`` the latest verdict on the turn.
    """
    try:
        admitted = _admit(signal, turn, policy=policy, private=private)
        _require_good_source(signal, admitted, policy=policy, outcome=outcome)
        weighing = weighing_of(signal, relevance=relevance, sender=sender, policy=policy)
        _require_weight(weighing)
        run = find_run(signal, admitted, tokenizer)
        lesson = _lesson(signal, admitted, run, weight=weighing.weight)
        _require_in_context(lesson, context_tokens=context_tokens)
        _require_length(lesson, policy=policy)
    except RefusalError as error:
        return error.refusal
    except RenderError as error:
        return Refusal(
            code=RefusalCode.TEMPLATE_NOT_PREFIX_STABLE,
            message=f"The chat template does not render turn {signal.turn} again ({error}). "
            "Signal a turn whose messages it takes, or serve with the template of that turn.",
        )
    return lesson


def _admit(signal: LessonSignal, turn: Turn | None, *, policy: AgentPolicy, private: bool) -> Turn:
    """Return the turn where the signal may be learned from it. Another agent's turn is as unknown as none."""
    assert turn is None or turn.id == signal.turn, f"signal {signal.id} is of turn {signal.turn}, not {turn.id}"
    if signal.turn is not None and (turn is None or turn.agent != signal.agent):
        raise RefusalError(
            RefusalCode.TURN_UNKNOWN,
            f"Agent {signal.agent} has no turn {signal.turn}. Give the id that X-Ridealong-Turn told.",
        )
    if not policy.learn:
        refusal = policy_off(signal.agent)
        raise RefusalError(refusal.code, refusal.message)
    if turn is None:
        raise RefusalError(
            RefusalCode.UNSERVED_PREFIX,
            f"Agent {signal.agent} was served no turn that begins like this conversation; it differs from the "
            "first token on. Serve the conversation first, then send what its reply should have been.",
            position=0,
        )
    if private or turn.private or not policy.private_contexts.isdisjoint({turn.context, signal.context}):
        raise RefusalError(
            RefusalCode.PRIVATE_CONTEXT,
            f"Turn {turn.id} is private, and nothing private trains. Signal a turn of a context that is not.",
        )
    return turn


def _require_good_source(signal: LessonSignal, turn: Turn, *, policy: AgentPolicy, outcome: Outcome) -> None:
    origin = origin_of(signal)
    if origin in policy.untrusted_origins:
        raise RefusalError(
            RefusalCode.UNTRUSTED_SOURCE,
            f"The policy does not trust origin {origin}. Signal what comes from an origin that it trusts.",
        )
    if outcome is Outcome.FAILED and (_learns_own_reply(signal, turn) or awaits_verdict(signal)):
        raise RefusalError(
            RefusalCode.FAILED_OUTCOME,
            f"Turn {turn.id} was judged failed, so its own reply is not learned, nor what waited for its verdict. "
            "Send a correction instead.",
        )


def awaits_verdict(signal: LessonSignal) -> bool:
    """Tell whether the lesson of a signal is to wait for a verdict on its turn."""
    return isinstance(signal, Engram | Action) and signal.await_verdict


def _learns_own_reply(signal: LessonSignal, turn: Turn) -> bool:
    match signal:
        case Engram():
            return points_to_own_reply(signal, turn)
        case Correction() | Labels():
            return False
        case Action():
            return True
        case _:
            assert_never(signal)


def _require_weight(weighing: Weighing) -> None:
    if weighing.weight == 0:
        raise RefusalError(
            RefusalCode.BAD_WEIGHT,
            f"There is nothing to learn: relevance {weighing.relevance} leaves every label at weight 0. "
            "Give a relevance above 0 and at most 1.",
        )


def _lesson(signal: LessonSignal, turn: Turn, run: Run, *, weight: float) -> LessonPlan:
    first = max(run.span.start, 1)  # nothing comes before the first token of all, so nothing predicts it
    end = run.span.end
    if first >= end:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The signal points at no token of turn {turn.id} that another precedes. Point at more of it.",
        )
    shares = [run.share(at) for at in range(first, end)]
    return LessonPlan(
        agent=turn.agent,
        context=turn.context,
        turn=turn.id,
        kind=signal.kind,
        signals=(signal.id,),
        prefix_tokens=first - 1,
        prefix=run.sequence[: first - 1],
        tokens=run.sequence[first - 1 : end - 1],
        targets=tuple(run.sequence[first + at] if share else None for at, share in enumerate(shares)),
        weights=tuple(weight * share for share in shares),
        lr=signal.lr if isinstance(signal, Correction | Labels) else None,
    )


def _require_in_context(lesson: LessonPlan, *, context_tokens: int) -> None:
    if lesson.last_position >= context_tokens:
        raise RefusalError(
            RefusalCode.PAST_CONTEXT,
            f"The lesson's rows are positions {lesson.prefix_tokens} to {lesson.last_position}; a context of "
            f"{context_tokens} tokens ends at {context_tokens - 1}. Point at less, or serve a larger one.",
            position=lesson.last_position,
        )


def _require_length(lesson: LessonPlan, *, policy: AgentPolicy) -> None:
    tokens, most = len(lesson.tokens), policy.max_lesson_tokens
    if tokens > most:
        raise RefusalError(
            RefusalCode.LESSON_TOO_LONG,
            f"The lesson is {tokens} tokens, and one may have {most}. Point at less at a time, or have the "
            "operator raise --max-lesson-tokens or the agent's max_lesson_tokens.",
            position=lesson.prefix_tokens + 1 + most,
        )
