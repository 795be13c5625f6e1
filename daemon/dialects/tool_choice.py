"""What a request's choice of tools makes of its reply."""

from collections.abc import Sequence

from daemon.dialects.asked import JsonReply, MustBe, Tool, ToolReply
from daemon.http.errors import BadRequest


def must_call(tools: Sequence[Tool], name: str | None = None) -> ToolReply:
    """The reply must call the named tool, or any of these.

    Raises:
        BadRequest: there is none such.
    """
    if not tools or (name is not None and name not in {tool.name for tool in tools}):
        wanted = "a tool" if name is None else repr(name)
        raise BadRequest(f"tool_choice: {wanted} is to be called, and tools has none such", param="tool_choice")
    return ToolReply(name)


def either(called: ToolReply | None, wanted: JsonReply | None) -> MustBe | None:
    """What the reply is held to, if to anything.

    Raises:
        BadRequest: to both, which no reply can be.
    """
    if called and wanted:
        raise BadRequest(
            f"{wanted.param}: a reply that must call a tool cannot also be this; give one of them",
            param=wanted.param,
        )
    return called or wanted
