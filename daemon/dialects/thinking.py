"""Whether the model thinks before it answers, as a request may say: through an argument of its chat template."""

from daemon.http.errors import BadRequest
from store.columns import JsonValue

SWITCH = "enable_thinking"
"""The argument by which Qwen's templates, and those that follow them, have thinking on or off."""


def can_switch(template: str) -> bool:
    """Does a chat template's text know the switch?"""
    return SWITCH in template


def thinking_args(template: str, *, on: bool, param: str) -> dict[str, JsonValue]:
    """The template's arguments that have the model think, or not.

    Raises:
        BadRequest: its template has no switch for that.
    """
    if can_switch(template):
        return {SWITCH: on}
    wanted = "to think" if on else "not to think"
    raise BadRequest(
        f"{param}: this model's chat template has no {SWITCH}, so it cannot be told {wanted}; leave it out",
        param=param,
    )
