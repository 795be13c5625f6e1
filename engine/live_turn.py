"""A turn on its slot: what of its prompt is served, what its reply has come to, and when it is at its end."""

from dataclasses import dataclass, field

from torch import Tensor

from engine.orders import EndReason, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampler, token_logprob
from engine.slots import Slot
from engine.text import ReplyText


@dataclass(slots=True)
class LiveTurn:
    """One turn being served. Times are in seconds on the lane's clock."""

    order: TurnOrder
    slot: Slot
    cached_tokens: int
    submitted_at: float
    sampler: Sampler
    text: ReplyText
    reply: list[int] = field(default_factory=list)
    first_token_at: float | None = None

    @property
    def prompt_left(self) -> int:
        """How many prompt tokens have not been served yet."""
        return max(0, len(self.order.tokens) - len(self.slot.tokens))

    def draw(self, logits: Tensor, *, now: float) -> TokenServed:
        """Draw the reply's next token from logits [V]. A token that ends the reply has no text.

        Raises:
            NotDrawable: there is no token to draw.
            ConstraintFailed: the constraint cannot say what may come; other errors of its own pass as they are.
        """
        token, asked = self.sampler.draw(logits), self.order.sampling.logprobs
        self.reply.append(token)
        if self.first_token_at is None:
            self.first_token_at = now
        text = "" if token in self.order.end_tokens else self.text.push(token)
        logprob = None if asked is None else token_logprob(logits, token, top=asked)
        return TokenServed(self.order.id, token, text, logprob)

    def reason_to_end(self, *, context_tokens: int) -> EndReason | None:
        """Is the reply at its end, and why?"""
        if self.reply[-1] in self.order.end_tokens or self.text.stopped or self.sampler.ended:
            return "stop"
        full = len(self.slot.tokens) >= context_tokens
        return "length" if full or len(self.reply) >= self.order.max_tokens else None

    def end(self, reason: EndReason, *, now: float, error: str | None = None) -> TurnEnded:
        """The turn's end, with the text that was still held back."""
        rest = "" if self.text.stopped else self.text.finish()
        first = self.first_token_at
        return TurnEnded(
            turn=self.order.id,
            reason=reason,
            text=rest,
            reply=self.text.text,
            reply_tokens=tuple(self.reply[: self.text.kept_tokens(len(self.reply))]),
            slot=self.slot.index,
            cached_tokens=self.cached_tokens,
            first_token_seconds=None if first is None else first - self.submitted_at,
            total_seconds=now - self.submitted_at,
            error=error,
            stop=self.text.stop,
        )
