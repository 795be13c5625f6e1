"""What the service says no to over HTTP.

ServiceError
├── BadRequest     400  a field is wrong; `param` names it
├── Unauthorized   401  there is no key, or one that is not known
├── Forbidden      403  the key is not for this
├── NotFound       404  there is no such thing
├── Conflict       409  it clashes with what is there
├── TooMany        429  there is no room for it now
├── Unavailable    503  the lane or the ledger cannot serve now
│   └── LaneStopped     the lane is closed, or has failed
└── HttpError      4xx  what HTTP itself refuses: no such path, method or size

`daemon/http/error_answers.py` says them in the shape of each dialect.
"""

import logging
import math
from typing import ClassVar

from pydantic import ValidationError

from store.errors import (
    AlreadyRecorded,
    BadPage,
    CannotForget,
    Closed,
    DoesNotFollow,
    Elsewhere,
    MovedOn,
    NothingToPromote,
    StoreError,
    Unknown,
)

logger = logging.getLogger(__name__)


class ServiceError(Exception):
    """The root: an HTTP status with a message for whoever asked."""

    status: int = 500
    kind: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's head says of it."""
        seconds = self.retry_after_seconds
        return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


class BadRequest(ServiceError):
    """The request cannot be served as sent."""

    status = 400
    kind = "invalid_request_error"


class Unauthorized(ServiceError):
    """Whoever asks is not known."""

    status = 401
    kind = "authentication_error"

    @property
    def headers(self) -> dict[str, str]:
        """How a key is given."""
        return {"WWW-Authenticate": 'Bearer realm="ridealong"'}


class Forbidden(ServiceError):
    """Whoever asks may not do this."""

    status = 403
    kind = "permission_error"


class NotFound(ServiceError):
    """What was named isn't there."""

    status = 404
    kind = "not_found_error"


class Conflict(ServiceError):
    """The request clashes with what is recorded."""

    status = 409
    kind = "conflict_error"


class TooMany(ServiceError):
    """There is no room for it now; it may be asked again."""

    status = 429
    kind = "rate_limit_error"


class Unavailable(ServiceError):
    """The service cannot do this now."""

    status = 503
    kind = "unavailable_error"


class HttpError(ServiceError):
    """HTTP itself refuses the request, with a status of its own."""

    kind = "invalid_request_error"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class SnapshotDamaged(Exception):
    """A snapshot's content is not what its name says, or it is missing."""


class LaneStopped(Unavailable):
    """The lane is closed or has failed; nothing more is served."""


_STATUS: tuple[tuple[type[Exception], type[ServiceError]], ...] = (
    (Unknown, NotFound),
    (AlreadyRecorded, Conflict),
    (DoesNotFollow, Conflict),
    (NothingToPromote, Conflict),
    (Elsewhere, Conflict),
    (CannotForget, Conflict),
    (MovedOn, Conflict),
    (BadPage, BadRequest),
    (Closed, Unavailable),
    (StoreError, Unavailable),
    (SnapshotDamaged, Unavailable),
)
"""Lower layers' errors, the first match wins."""


def bad_field(error: ValidationError) -> BadRequest:
    """A pydantic complaint as a 400 that names the first field and counts the others."""
    problems = error.errors(include_input=False, include_context=False, include_url=False)
    where = ".".join(str(part) for part in problems[0]["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    said = problems[0]["msg"].removeprefix("Value error, ")
    if problems[0]["type"] == "extra_forbidden":
        said = "this parameter is not supported; leave it out"
    return BadRequest(f"{where or 'the body'}: {said}{more}", param=where or None)


def mapped(error: Exception) -> ServiceError:
    """Any error as one of ours; what is not expected is logged."""
    if isinstance(error, ServiceError):
        return error
    for lower, ours in _STATUS:
        if isinstance(error, lower):
            return ours(str(error))
    logger.exception("a request failed")
    return ServiceError("the service failed on this request; its log says why")
