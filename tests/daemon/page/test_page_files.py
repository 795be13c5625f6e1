"""The page's files: what they come as, that a browser's copy is good while it is newest, that all are packed."""

import re
import tomllib
from pathlib import Path

from yarl import URL

from signals.refusals import RefusalCode
from store.words import LedgerKind
from tests.daemon.conftest import Running
from tests.daemon.test_keys import guarded

__all__ = ["guarded"]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "daemon" / "page"
KINDS = {
    "page.css": "text/css",
    "main.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "refusals.json": "application/json",
    "vendor/uPlot.iife.min.js": "text/javascript",
    "vendor/uPlot.LICENSE.txt": "text/plain",
}
SCRIPTS = [*PAGE.glob("*.js"), PAGE / "index.html"]


async def test_the_page_and_each_of_its_files_come_as_what_they_are(running: Running) -> None:
    async with running.http.get(running.url + "/") as answer:
        assert (answer.status, answer.content_type, answer.charset) == (200, "text/html", "utf-8")
        assert (await answer.text()) == (PAGE / "index.html").read_text()
    for name, kind in KINDS.items():
        async with running.http.get(f"{running.url}/page/{name}") as answer:
            assert (answer.status, answer.content_type) == (200, kind), name
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    told = await running.get("/page/refusals.json")
    assert told == {code: code.sentence for code in RefusalCode}


async def test_a_page_may_run_nothing_but_its_own_files_and_ask_nobody_else(running: Running) -> None:
    async with running.http.get(running.url + "/") as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text)
    for path in SCRIPTS:
        assert not re.search(r"https?://(?!www\.w3\.org)|innerHTML|insertAdjacentHTML|eval\(", path.read_text()), (
            path
        )


async def test_a_browser_that_has_the_newest_is_told_so(running: Running) -> None:
    for path in ("/", "/page/page.css"):
        async with running.http.get(running.url + path) as answer:
            tag, whole = answer.headers["ETag"], await answer.read()
            assert answer.headers["Cache-Control"] == "no-cache"
        async with running.http.get(running.url + path, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read(), answer.headers["ETag"]) == (304, b"", tag)
        async with running.http.get(running.url + path, headers={"If-None-Match": '"other"'}) as answer:
            assert (answer.status, await answer.read()) == (200, whole)
        async with running.http.head(running.url + path) as answer:
            assert (answer.status, answer.headers["ETag"], await answer.read()) == (200, tag, b"")
            assert int(answer.headers["Content-Length"]) == len(whole)


async def test_nothing_but_those_files_is_there(running: Running) -> None:
    for name in (
        "../config.py",
        "..%2fconfig.py",
        "vendor/../../config.py",
        "%2e%2e/config.py",
        "README.md",
        "vendor",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "page.css/",
        "page.css%00.js",
        "missing.js",
    ):
        async with running.http.get(URL(f"{running.url}/page/{name}", encoded=True)) as answer:
            assert answer.status == 404, name
            assert "error" in await answer.json()


async def test_the_page_itself_needs_no_key_and_what_it_shows_does(guarded: Running) -> None:
    async with guarded.http.get(guarded.url + "/") as answer:
        assert answer.status == 200
    async with guarded.http.get(guarded.url + "/page/main.js") as answer:
        assert answer.status == 200
    async with guarded.http.get(guarded.url + "/lessons") as answer:
        assert answer.status == 401


async def test_every_file_that_the_page_names_is_there(running: Running) -> None:
    named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', (PAGE / "index.html").read_text()))
    imported = {
        f"page/{name}" for path in PAGE.glob("*.js") for name in re.findall(r'from "\./(.+?)"', path.read_text())
    }
    assert len(named) >= 6
    assert len(imported) >= 10
    for path in named | imported:
        async with running.http.get(f"{running.url}/{path}") as answer:
            assert answer.status == 200, path


def test_a_wheel_has_all_of_them() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["daemon"]
    packed = {path for pattern in patterns for path in (ROOT / "daemon").glob(pattern) if path.is_file()}
    assert {path for path in PAGE.rglob("*") if path.is_file()} == packed


def test_the_pages_readme_has_a_line_for_each_of_its_files() -> None:
    told = (PAGE / "README.md").read_text()
    assert not [path.name for path in PAGE.iterdir() if path.name != "README.md" and f"`{path.name}" not in told]


def test_the_page_knows_every_kind_of_row() -> None:
    told = re.search(r"KINDS = \[(.+?)\]", (PAGE / "ledger.js").read_text())
    assert told is not None
    assert re.findall(r'"(\w+)"', told[1]) == list(LedgerKind)


def test_the_pages_files_are_small() -> None:
    for path in [*PAGE.glob("*.js"), *PAGE.glob("*.css"), PAGE / "index.html"]:
        assert len(path.read_text().splitlines()) <= 330, path
