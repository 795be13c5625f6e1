"""Planning signals one after another, on a thread: what each needs is looked up already.

- Signals of one turn mostly come together: a turn is made readable, and its prompt cut into tokens, once for them.
- One signal that cannot be planned takes no other with it.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache

from daemon.learning.gathering import Planned
from daemon.learning.lookups import Lookup
from daemon.learning.policies import Policies
from daemon.learning.precedence import Precedence
from daemon.learning.records import turn_of
from daemon.text.chat_template import HuggingFaceChat
from signals.planning import plan
from signals.records import Turn
from signals.runs import LessonSignal

logger = logging.getLogger(__name__)


class Planner:
    """Plans signals, and stands aside for those that are being put."""

    def __init__(
        self, chat: HuggingFaceChat, policies: Policies, precedence: Precedence, *, context_tokens: int
    ) -> None:
        self._chat = chat
        self._policies = policies
        self._precedence = precedence
        self._context_tokens = context_tokens

    def plan_each(self, given: Sequence[tuple[LessonSignal, Lookup]]) -> list[Planned]:
        """Plan what can be planned, in the order given."""
        planned, batch = list[Planned](), _Batch(self._chat, self._context_tokens)
        aside = self._precedence.standing_aside()
        for signal, found in given:
            next(aside)
            try:
                planned.append(self._plan(signal, found, batch))
            except Exception:  # one signal's border
                logger.exception("signal %s could not be planned", signal.id)
        next(aside)  # before it is written: nobody puts while others write
        return planned

    def _plan(self, signal: LessonSignal, found: Lookup, batch: "_Batch") -> Planned:
        outcome = plan(
            signal,
            batch.turn_of(found),
            policy=self._policies.of(signal.agent),
            tokenizer=batch,
            context_tokens=self._context_tokens,
            private=found.private,
            sender=found.sender,
            relevance=found.relevance,
            outcome=found.outcome,
        )
        return Planned(signal, found, outcome)


class _Batch:
    """A tokenizer and turns, remembered for as long as signals of one batch are planned."""

    def __init__(self, chat: HuggingFaceChat, context_tokens: int) -> None:
        self._chat = chat
        self._context_tokens = context_tokens
        self._turns: dict[str, Turn] = {}
        self.encode = cache(chat.encode)
        self.end_of_turn_ids = chat.end_of_turn_ids

    def turn_of(self, found: Lookup) -> Turn | None:
        """The turn, as planning reads it."""
        if found.turn is None:
            return None
        if found.turn.id not in self._turns:
            self._turns[found.turn.id] = turn_of(found.turn, context_tokens=self._context_tokens)
        return self._turns[found.turn.id]

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        template_args: Mapping[str, object],
    ) -> str:
        """As the lane's own."""
        return self._chat.render(
            messages, add_generation_prompt=add_generation_prompt, template_args=template_args
        )
