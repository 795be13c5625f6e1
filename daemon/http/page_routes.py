"""The operator page: `GET /`, and the files that it is made of under `/page`.

- Every file is read once, at the start, and comes with its hash: a browser that has it is told so.
- What is not one of those files is not there, whatever a path looks like.
- The page asks nobody but this lane for anything, and runs nothing but its own files: its policy forbids the rest.
- It holds nothing of the lane's, so that it needs no key; what it shows it asks for as everyone does.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Self

from aiohttp import ETag, web

from daemon.http.errors import NotFound
from signals.refusals import RefusalCode

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "json": "application/json",
    "txt": "text/plain",
}
"""What a file is, by how its name ends; what ends otherwise is no part of the page."""

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""`no-cache`: a browser asks whether its copy is the newest, and is answered in one line."""

_INDEX, _REFUSALS = "index.html", "refusals.json"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page: what it is, its bytes, and their hash."""

    content_type: str
    data: bytes
    sha: str

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """The file of that name."""
        return cls(_TYPES[_ending(name)], data, hashlib.sha256(data).hexdigest())


class PageRoutes:
    """Serves the routes."""

    def __init__(self) -> None:
        self._files = {name: PageFile.of(name, data) for name, data in page_files()}

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.get("/", self.index), web.get("/page/{name:.+}", self.file)]

    async def index(self, request: web.Request) -> web.Response:
        """`GET /`: the page."""
        return _answer(request, self._files[_INDEX])

    async def file(self, request: web.Request) -> web.Response:
        """`GET /page/{name}`: a file of it."""
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise NotFound(f"the page has no file {request.match_info['name']!r}")
        return _answer(request, file)


def page_files() -> Iterator[tuple[str, bytes]]:
    """The files in `daemon/page` by their names there, and what each refusal's code means."""
    yield from _files_in(files("daemon").joinpath("page"))
    yield _REFUSALS, json.dumps({code: code.sentence for code in RefusalCode}).encode()


def _files_in(folder: Traversable, under: str = "") -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files_in(each, f"{under}{each.name}/")
        elif _ending(each.name) in _TYPES:
            yield under + each.name, each.read_bytes()


def _answer(request: web.Request, file: PageFile) -> web.Response:
    response = web.Response(status=304, headers=_HEADERS) if _has(request, file) else _whole(file)
    response.etag = ETag(file.sha)
    return response


def _has(request: web.Request, file: PageFile) -> bool:
    """Does whoever asks have this very file already?"""
    return any(tag.value in {file.sha, "*"} for tag in request.if_none_match or ())


def _whole(file: PageFile) -> web.Response:
    return web.Response(body=file.data, content_type=file.content_type, charset="utf-8", headers=_HEADERS)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
