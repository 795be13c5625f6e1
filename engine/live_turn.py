"""A turn on its slot: what of its prompt is served, what its reply has come to, and when it is at its end."""

from dataclasses import dataclass, field

from engine.orders import EndReason, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampler
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

    def take(self, token: int, *, now: float) -> TokenServed:
        """The reply's next token. A token that ends the reply has no text."""
        self.reply.append(token)
        if self.first_token_at is None:
            self.first_token_at = now
        ends = token in self.order.end_tokens
        return TokenServed(self.order.id, token, "" if ends else self.text.push(token))

    def reason_to_end(self, *, context_tokens: int) -> EndReason | None:
        """Is the reply at its end, and why?"""
        if self.reply[-1] in self.order.end_tokens or self.text.stopped:
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
        )
