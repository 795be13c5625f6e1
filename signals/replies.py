"""What a reply must be to be learned: plain text. One whose substance is elsewhere is refused as a whole."""

from signals.refusals import RefusalCode, RefusalError

TOOL_CALL_MARKERS = ("<tool_call>", "<function=", "<|tool_call", "<|python_tag|>", "[TOOL_CALLS]")
"""How the templates of the field open a tool call in the text of a reply."""

REASONING_MARKERS = ("<think>", "</think>", "<|channel|>analysis")
"""How they mark reasoning; where the prompt has opened it already, the reply shows its end alone."""


def require_plain(text: str) -> str:
    """Return the reply's text where it is all of the reply."""
    if not require_unmarked(text).strip():
        raise RefusalError(
            RefusalCode.EMPTY_REPLY,
            f"The reply is {len(text)} characters, none of them visible. Give it a text.",
        )
    return text


def require_unmarked(text: str) -> str:
    """Return a text that opens neither a tool call nor reasoning."""
    if marker := _first_of(TOOL_CALL_MARKERS, text):
        raise tool_call_reply(marker)
    if marker := _first_of(REASONING_MARKERS, text):
        raise reasoning_reply(marker)
    return text


def tool_call_reply(found: str) -> RefusalError:
    """Refuse a reply that calls a tool in a form that cannot be learned."""
    return RefusalError(
        RefusalCode.TOOL_CALL_REPLY,
        f"The reply holds a tool call ({found}); what is learned is plain text, or a correction's tool_calls "
        "where the chat template writes them. Signal a reply without one.",
    )


def reasoning_reply(found: str) -> RefusalError:
    """Refuse a reply with reasoning."""
    return RefusalError(
        RefusalCode.REASONING_REPLY,
        f"The reply holds reasoning ({found}), and only plain text is learned. Signal a reply without it.",
    )


def _first_of(markers: tuple[str, ...], text: str) -> str | None:
    return next((marker for marker in markers if marker in text), None)
