"""Web pages that are not the lane's own: what a browser asks in their name is refused.

- Where no key is needed, a browser on this machine may reach the lane for any page that it shows. What changes
  something is then served to the lane's own pages and to allowed ones only (by `Origin`), and nothing at all is
  served under a name that is not this machine's (by `Host`: a page's own name can be made to point here).
- Where a key is needed no page has one, and proxies may give the lane what name they like.
- Allowed pages may read the answers: CORS, preflight included. Whoever is no browser sends no `Origin`.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from daemon.http.error_answers import Handler
from daemon.http.errors import Forbidden

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing, and a page that is not allowed cannot read what they answer."""

_PREFLIGHT_SECONDS = 600
"""How long a browser may keep a preflight's answer."""


class Origins:
    """Whose pages may ask.

    `allowed` are origins as browsers write them, `scheme://host` with a port that is not the scheme's own.
    """

    def __init__(self, allowed: Iterable[str], *, guarded: bool) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._names = frozenset(name for origin in self._allowed if (name := urlsplit(origin).hostname))
        self._guarded = guarded

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through unless it comes from another's page; answer an allowed page's preflight.

        Raises:
            Forbidden: it comes from a page that is not allowed, or under a name that is not this machine's.
        """
        if self._guarded:
            self._check_name(request)
            self._check_page(request)
        if self._allows(request) and _is_preflight(request):
            return web.Response(status=204, headers=_preflight_headers(request))
        return await handler(request)

    async def say_who_may_read(self, request: web.Request, response: web.StreamResponse) -> None:
        """Have an allowed page read the answer; the application calls this before a head is sent."""
        if self._allowed:
            response.headers.add("Vary", "Origin")
        if self._allows(request):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = "*"

    def _check_name(self, request: web.Request) -> None:
        host = request.headers.get("Host")
        if host is None or _is_this_machine(name := _name_of(host)) or name in self._names:
            return
        raise Forbidden(
            f"without keys this lane is asked as localhost, 127.0.0.1 or [::1], not as {host!r}; "
            f"ask it so, give it keys, or start it with --allow-origin http://{host}",
            code="foreign_host",
        )

    def _check_page(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if request.method in _SAFE_METHODS or origin is None or self._allows(request):
            return
        if origin.lower() == f"http://{request.headers.get('Host', '')}".lower():
            return
        raise Forbidden(
            f"without keys this lane takes nothing from pages of {origin!r}; "
            "allow them with --allow-origin ORIGIN, or give the lane keys",
            code="foreign_origin",
        )

    def _allows(self, request: web.Request) -> bool:
        return request.headers.get("Origin", "").lower() in self._allowed


def _is_preflight(request: web.Request) -> bool:
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def _preflight_headers(request: web.Request) -> dict[str, str]:
    return {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
    }


def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port; empty if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_this_machine(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
