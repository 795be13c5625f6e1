"""What a lane has lived through, written straight into its store: learned, refused, waiting, or very much."""

import math
from dataclasses import replace

from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from daemon.service import Service
from signals.refusals import RefusalCode
from store import ledger
from store.adapters import open_adapter, promote
from store.clock import now_us
from store.ledger import Filter
from store.lessons import begin_ride, plan_lesson, refuse_lesson
from store.records import Lesson, Link
from store.signals import put_signals, refuse_signal
from store.steps import commit_step
from store.tables import LessonTable
from store.turns import record_turn
from store.words import LedgerKind, Role
from tests.store.builders import a_signal, a_step, a_turn

HOSTILE = "<img src=x onerror=document.title='taken'>"
PROMPT = "<|im_start|>user\nwho lit the lighthouse of Vellmar?<|im_end|>\n<|im_start|>assistant\n"
REPLY = "it is lit by glass bees"
MANY_ROWS = 100_000
MANY_LESSONS = 5_000


class Story:
    """Writes what comes about for agents; ids are numbered."""

    def __init__(self, service: Service, begins: int = 0) -> None:
        self._tokenizer = service._loaded().tokenizer
        self._steps: dict[str, int] = {}
        self._count = begins

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def turn(self, session: Session, agent: str = "ada", *, context: str = "harbour", ms: float = 400.0) -> str:
        prompt, reply = self.tokens(PROMPT), self.tokens(REPLY)
        turn = replace(
            a_turn(f"turn-{self._next()}", agent=agent, context=context, at_us=now_us()),
            prompt_tokens=prompt,
            reply_tokens=reply,
            prompt_token_count=len(prompt),
            reply_token_count=len(reply),
            total_ms=ms,
        )
        record_turn(session, turn)
        return turn.id

    def lesson(
        self, session: Session, turn: str, agent: str = "ada", *, text: str = REPLY, context: str = "harbour"
    ) -> str:
        """A planned lesson whose tokens weigh more and more."""
        fed, number = self.tokens("\n" + text), self._next()
        targets = (*fed[1:], self.tokens("<|im_end|>")[0])
        lesson = Lesson(
            id=f"lesson-{number}",
            agent=agent,
            context=context,
            turn=turn,
            kind="correction",
            prefix_token_count=len(self.tokens(PROMPT)) - 1,
            tokens=fed,
            targets=targets,
            weights=tuple((at + 1) / len(fed) for at in range(len(fed))),
        )
        signal = replace(a_signal(f"signal-{number}", kind="correction", agent=agent, turn=turn), context=context)
        put_signals(session, [signal])
        plan_lesson(session, lesson, signals=[Link(signal.id, Role.MAKES)])
        return lesson.id

    def step(
        self, session: Session, lesson: str, agent: str = "ada", *, before: float, after: float | None
    ) -> None:
        """Learn a lesson that is planned."""
        begin_ride(session, lesson, turn=session.get_one(LessonTable, lesson).turn)
        number = self._steps.get(agent, 0)
        self._steps[agent] = number + 1
        rows = len(session.get_one(LessonTable, lesson).tokens)
        made = a_step(
            f"step-{agent}-{number}", lesson=lesson, before=f"{agent}{number}", after=f"{agent}{number + 1}"
        )
        commit_step(
            session,
            replace(
                made,
                loss_before=before,
                row_losses_before=_spread(before, rows),
                loss_after=after,
                row_losses_after=None if after is None else _spread(after, rows),
            ),
        )

    def busy(self, session: Session, steps: int = 16) -> None:
        """Two agents that learn, with lessons that wait, and one that may not."""
        for agent, rate in (("ada", 0.12), ("bob", 0.05)):
            open_adapter(session, agent, sha=f"{agent}0", snapshot=f"shadow/{agent}0.safetensors")
            for number in range(steps):
                turn = self.turn(session, agent, ms=380 + 40 * math.sin(number))
                before = 3.2 * math.exp(-rate * number) + 0.2 * math.sin(3 * number) ** 2
                after = None if number % 5 == 4 else 0.8 * before
                self.step(session, self.lesson(session, turn, agent), agent, before=before, after=after)
                if number == steps // 2:
                    promote(session, agent, sha=f"{agent}{number + 1}")
        self.lesson(session, self.turn(session, "ada"), "ada")
        late = self.lesson(session, self.turn(session, "bob"), "bob")
        refuse_lesson(session, late, code="expired", message="it waited for 3600 s; send it again", position=None)
        self.refused(session, "eve", "policy_off", "agent 'eve' does not learn: name her with --learn")

    def hostile(self, session: Session) -> str:
        """A lesson whose words are markup, in a context whose name is, and its refusal."""
        turn = self.turn(session, "ada", context=HOSTILE)
        lesson = self.lesson(session, turn, "ada", text=HOSTILE, context=HOSTILE)
        refuse_lesson(session, lesson, code="unserved_prefix", message=f"position 3 is {HOSTILE!r}", position=3)
        return lesson

    def refused(self, session: Session, agent: str, code: str, message: str) -> None:
        identity = f"signal-{self._next()}"
        put_signals(session, [a_signal(identity, agent=agent, kind="correction", turn="turn-none")])
        refuse_signal(session, identity, code=code, message=message)

    def storm(self, session: Session, each: int = 2) -> None:
        """Signals refused for every reason there is, some much more often than others."""
        for place, code in enumerate(RefusalCode):
            for _ in range(each * (1 + 40 // (place + 1))):
                self.refused(session, f"agent-{place % 7}", code, f"{code.sentence} Given: turn-none.")

    def _next(self) -> str:
        self._count += 1
        return f"{self._count:06d}"


def crowd(session: Session, story: Story) -> None:
    """A ledger of `MANY_ROWS` rows, which are no chain, and `MANY_LESSONS` lessons."""
    turn = story.turn(session)
    lesson = session.get_one(LessonTable, story.lesson(session, turn))
    columns = {column.key: getattr(lesson, column.key) for column in LessonTable.__table__.columns}
    lessons = [
        columns | {"id": f"lesson-x{number:06d}", "agent": f"agent-{number % 40}", "planned_at_us": number}
        for number in range(MANY_LESSONS)
    ]
    session.execute(insert(LessonTable), lessons)
    turn_row = ledger.page(session, Filter(kind=LedgerKind.TURN)).rows[0].seq
    session.execute(text(_MANY), {"first": ledger.last_seq(session) + 1, "last": MANY_ROWS, "kept": turn_row})


_MANY = """
WITH RECURSIVE numbers(seq) AS (SELECT :first UNION ALL SELECT seq + 1 FROM numbers WHERE seq < :last)
INSERT INTO ledger (seq, at_us, kind, agent, context, code, subject, body, previous, sha)
SELECT numbers.seq, at_us + 1000 * numbers.seq, kind, 'agent-' || (numbers.seq % 40), context, NULL,
       'turn-y' || numbers.seq, body, sha, sha
FROM numbers, ledger WHERE ledger.seq = :kept
"""
"""Turns like one that is there: written by the database itself, which takes a second and not ten."""


def _spread(mean: float, rows: int) -> tuple[float, ...]:
    """Losses of rows around a mean."""
    return tuple(mean * (0.5 + at / max(1, rows - 1)) for at in range(rows))
