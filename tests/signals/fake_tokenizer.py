"""A chat tokenizer small enough to check by eye, with what makes real ones hard.

* ChatML markers are single tokens, written or parsed; `<|im_end|>` ends a turn, and so does `<|endoftext|>`,
  which the template never writes and whose id is lower.
* A word of ASCII letters is one token with the space before it, so that spans split tokens.
* Any other character is one token per byte, and all of them carry the character's offsets.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from signals.records import Message, Turn
from signals.tokens import Encoding

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
PIECE = re.compile(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>| ?[A-Za-z]+|.", re.DOTALL)

Messages = Sequence[Mapping[str, object]]
Template = Callable[[Messages, bool, Mapping[str, object]], str]


def chatml(messages: Messages, add_generation_prompt: bool, template_args: Mapping[str, object]) -> str:
    text = "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)
    opened = str(template_args.get("opening", ""))
    return text + (f"{IM_START}assistant\n{opened}" if add_generation_prompt else "")


def trimming_chatml(messages: Messages, add_generation_prompt: bool, args: Mapping[str, object]) -> str:
    trimmed = [{**message, "content": str(message["content"]).strip()} for message in messages]
    return chatml(trimmed, add_generation_prompt, args)


def _first_vocabulary() -> list[bytes]:
    return [*(bytes([byte]) for byte in range(256)), END_OF_TEXT.encode(), IM_START.encode(), IM_END.encode()]


@dataclass
class FakeTokenizer:
    template: Template = chatml
    vocabulary: list[bytes] = field(default_factory=_first_vocabulary)

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        return frozenset({self._id(IM_END.encode()), self._id(END_OF_TEXT.encode())})

    def render(
        self, messages: Messages, *, add_generation_prompt: bool, template_args: Mapping[str, object]
    ) -> str:
        return self.template(messages, add_generation_prompt, template_args)

    def encode(self, text: str) -> Encoding:
        tokens = [(self._id(piece), match.span()) for match in PIECE.finditer(text) for piece in _pieces(match[0])]
        return Encoding(ids=tuple(i for i, _ in tokens), offsets=tuple(span for _, span in tokens))

    def decode(self, ids: Sequence[int | None]) -> str:
        """The text of tokens; what is no token is three dots."""
        return b"".join(b"..." if i is None else self.vocabulary[i] for i in ids).decode(errors="replace")

    def _id(self, piece: bytes) -> int:
        if piece not in self.vocabulary:
            self.vocabulary.append(piece)
        return self.vocabulary.index(piece)


def _pieces(text: str) -> list[bytes]:
    return [text.encode()] if len(text) > 1 else [bytes([byte]) for byte in text.encode()]


def serve(
    tokenizer: FakeTokenizer,
    *contents: str,
    reply: str = "hello you",
    ended: bool = True,
    private: bool = False,
    context: str = "",
    template_args: Mapping[str, str] | None = None,
) -> Turn:
    """Serve a turn of the agent ada whose prompt has these contents, from the user and the assistant by turns."""
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[i % 2], content=content) for i, content in enumerate(contents))
    args = dict(template_args or {})
    prompt = tokenizer.render(
        [message.for_template() for message in messages], add_generation_prompt=True, template_args=args
    )
    return Turn(
        id="turn-1",
        agent="ada",
        context=context,
        private=private,
        messages=messages,
        template_args={**args},
        prompt_tokens=tokenizer.encode(prompt).ids,
        reply_tokens=tokenizer.encode(reply + (IM_END if ended else "")).ids,
        reply_text=reply,
        adapter="ada",
        context_tokens=4096,
    )
