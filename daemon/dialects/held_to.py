"""What a reply is held to, as a compiled grammar: JSON, a text, or calls as the model writes them.

Reasoning that the prompt has opened stays free: the grammar begins behind its closing tag.
"""

from collections.abc import Sequence

from daemon.dialects.asked import GrammarReply, JsonReply, MustBe, Tool, ToolReply
from daemon.http.errors import BadRequest
from daemon.text.grammar import CompiledGrammar, GrammarError, Grammars, WrappedJson, function_call
from daemon.text.reply_format import ReplyFormat


def held_to(
    must_be: MustBe, grammars: Grammars, *, format_: ReplyFormat, tools: Sequence[Tool], prompt: str
) -> CompiledGrammar:
    """Compile the grammar of a reply to this rendered prompt.

    Raises:
        BadRequest: it cannot be enforced; the request's field is named.
    """
    after = format_.reasoning.close if format_.reasoning and format_.opened_by(prompt) else None
    try:
        return _compiled(must_be, grammars, format_, tools, after)
    except GrammarError as error:
        raise BadRequest(f"{must_be.param}: {error.message}", param=must_be.param) from error


def _compiled(
    must_be: MustBe, grammars: Grammars, format_: ReplyFormat, tools: Sequence[Tool], after: str | None
) -> CompiledGrammar:
    match must_be:
        case JsonReply(schema, strict):
            if schema is None:
                return grammars.json_object(after=after)
            return grammars.json_schema(schema, strict=strict, after=after)
        case GrammarReply(grammar):
            return grammars.grammar(grammar, after=after)
        case ToolReply(name):
            chosen = [_call(tool, format_) for tool in tools if name in {None, tool.name}]
            several = "\n" if name is None and format_.calls else None
            return grammars.calls(chosen, separator=several, after=after)


def _call(tool: Tool, format_: ReplyFormat) -> WrappedJson:
    """A call of the tool, as the model's template writes it."""
    prefix, suffix = (f"{format_.calls.open}\n", f"\n{format_.calls.close}") if format_.calls else ("", "")
    parameters = None if tool.parameters is None else {"type": "object", **tool.parameters}
    key = format_.arguments_key
    return function_call(tool.name, parameters, prefix=prefix, suffix=suffix, arguments_key=key)
