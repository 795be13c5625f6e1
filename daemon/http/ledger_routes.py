"""The ledger over HTTP: a page of it, one row of it, and whether its chain is unbroken.

To an agent's key there are her own rows and no others.
"""

import json
from dataclasses import replace

from aiohttp import web

from daemon.http.access import caller_of
from daemon.http.ledger_json import boolean_of, filter_of, integer_of, row_json, step_json, verified_json
from store import chain, ledger, steps
from store.errors import Unknown
from store.store import Store
from store.words import LedgerKind

DEFAULT_ROWS = 100
"""Rows of a page that names no limit."""


class LedgerRoutes:
    """Serves the routes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> list[web.RouteDef]:
        """The routes; the last takes every other path under the ledger's."""
        return [
            web.get("/ledger", self.page),
            web.get("/ledger/verify", self.verify),
            web.get("/ledger/{seq}", self.row),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """`GET /ledger`: a page of rows, as JSON or NDJSON."""
        query = dict(request.query)
        limit, cursor = integer_of(query, "limit"), integer_of(query, "cursor")
        newest = boolean_of(query, "newest")
        wanted = filter_of(query)
        wanted = replace(wanted, agent=caller_of(request).meant(wanted.agent))
        page = await self._store.read(
            ledger.page, wanted, cursor=cursor, limit=DEFAULT_ROWS if limit is None else limit, newest=newest
        )
        rows = [row_json(row) for row in page.rows]
        if "application/x-ndjson" in request.headers.get("Accept", ""):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            headers = {} if page.next_cursor is None else {"X-Ridealong-Cursor": str(page.next_cursor)}
            return web.Response(text=text, content_type="application/x-ndjson", headers=headers)
        return web.json_response({"rows": rows, "next_cursor": page.next_cursor})

    async def row(self, request: web.Request) -> web.Response:
        """`GET /ledger/{seq}`: one row; of a step, all that it was made of."""
        seq = integer_of(request.match_info, "seq")
        assert seq is not None, "the route has a seq"
        row = await self._store.read(ledger.row_of, seq)
        if not caller_of(request).may_see(row.agent):
            raise Unknown("ledger row", str(seq))
        told = row_json(row)
        if row.kind is LedgerKind.STEP:
            told["step"] = step_json(await self._store.read(steps.step_of, row.subject))
        return web.json_response(told)

    async def verify(self, _request: web.Request) -> web.Response:
        """`GET /ledger/verify`: is the chain unbroken?"""
        return web.json_response(verified_json(await self._store.read(chain.verify)))
