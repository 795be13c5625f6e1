"""What a request says of learning, the same in every dialect: its `learn` object.

- A request asks for one lesson at most: of its reply, of a conversation that ends in that reply, or of labels on
  its prompt. The lesson is a signal of its turn's, so it is learned at most once, planned or refused as any other.
- Messages are written as OpenAI's chat completions write them, whatever the dialect.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from daemon.dialects.openai_messages import ChatMessage
from daemon.dialects.strict import Body
from daemon.http.speaker import Speaker
from signals.records import (
    MAX_LABELS,
    MAX_TEXT_CHARS,
    Correction,
    Label,
    Labels,
    LearningRate,
    Message,
    ReplyMessage,
    Text,
)

MAX_LEARN_WAIT_SECONDS = 600.0
"""Longer than any lesson takes; a client that waits longer has been forgotten."""

WaitSeconds = Annotated[float, Field(ge=0, le=MAX_LEARN_WAIT_SECONDS)]
ReplyText = Annotated[Text, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
Messages = Annotated[tuple[ChatMessage, ...], Field(min_length=2)]
"""A conversation that ends in the reply to learn."""

_LESSONS = ("reply", "messages", "labels")


class LearnOptions(Body):
    """What the client wants of learning in this request."""

    wait: WaitSeconds | None = None
    """Seconds that the end of the answer may wait for lessons; without, it waits for the one it asks for alone."""
    reply: ReplyText | None = None
    """What the reply should have been: learned after this request's prompt."""
    messages: Messages | None = None
    """The conversation as it should have gone; its last message is learned, an assistant's."""
    lr: LearningRate | None = None
    """The learning rate of this request's lesson."""
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_LABELS)] | None = None
    """Which of the prompt's own words are learned."""

    @model_validator(mode="after")
    def _asks_for_one_lesson(self) -> Self:
        given = [name for name in _LESSONS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are lessons each, and a request asks for one; leave the others out"
            )
        if self.lr is not None and not given:
            raise ValueError(
                "lr is the rate of this request's lesson, and it has none; give reply, messages or labels"
            )
        if self.messages is not None:
            split_reply(self.messages)
        return self

    @property
    def asks(self) -> bool:
        """Does the request ask for a lesson of its own?"""
        return any(getattr(self, name) is not None for name in _LESSONS)

    @property
    def wait_seconds(self) -> float:
        """How long the end of the answer may wait for lessons."""
        if self.wait is not None:
            return self.wait
        return MAX_LEARN_WAIT_SECONDS if self.asks else 0.0

    def labels_of(self, turn: str, speaker: Speaker) -> Labels | None:
        """The labels on that turn's prompt, as a signal."""
        if self.labels is None:
            return None
        identity, agent, context = own_signal(turn), speaker.agent, speaker.context
        return Labels(id=identity, agent=agent, context=context, turn=turn, labels=self.labels, lr=self.lr)

    def correction_of(self, turn: str, speaker: Speaker) -> Correction | None:
        """What that turn's reply should have been, as a signal."""
        if self.messages is not None:
            before, reply = split_reply(self.messages)
            return _correction(turn, speaker, reply, lr=self.lr, messages=before)
        return None if self.reply is None else _correction(turn, speaker, self.reply, lr=self.lr)


def own_signal(turn: str) -> str:
    """The id of the signal that a request's `learn` makes, by its turn's."""
    return f"learn-{turn}"


def split_reply(messages: Messages) -> tuple[tuple[Message, ...], ReplyMessage]:
    """The conversation before the last message, and that one as a reply.

    Raises:
        ValueError: the last one is not an assistant's.
    """
    *before, last = (message.for_template() for message in messages)
    if last.role != "assistant":
        raise ValueError(
            f"messages ends in a message of role {last.role}; the last one is the reply, an assistant's"
        )
    return tuple(before), reply_of(last)


def reply_of(message: Message) -> ReplyMessage:
    """An assistant's message as a reply."""
    return ReplyMessage(
        content=message.content, tool_calls=message.tool_calls, reasoning_content=message.reasoning_content
    )


def _correction(
    turn: str,
    speaker: Speaker,
    reply: str | ReplyMessage,
    *,
    lr: float | None,
    messages: tuple[Message, ...] | None = None,
) -> Correction:
    return Correction(
        id=own_signal(turn),
        agent=speaker.agent,
        context=speaker.context,
        turn=turn,
        reply=reply,
        messages=messages,
        lr=lr,
    )
