"""Another's web page can change nothing here, nor read anything; the lane's own page and allowed ones can."""

from typing import Any

import pytest

from daemon.config import ConfigError, read_settings
from daemon.http.access import ACCESS
from tests.daemon.conftest import Running, Start
from tests.daemon.test_error_answers import KEYS, keys_of
from tests.daemon.test_limits import wire

PAGE = "https://page.example"
CHANGES = sorted(path for method, path in ACCESS if method == "POST")
HELLO: dict[str, Any] = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


async def asked_as(running: Running, host: str, method: str = "GET", path: str = "/v1/models") -> bytes:
    """The whole answer to a request of that `Host`."""
    async with wire(running) as (reader, writer):
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        return await reader.read()


@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:1", "http://localhost"])
async def test_whatever_changes_something_is_refused_to_anothers_page(running: Running, origin: str) -> None:
    for path in CHANGES:
        asked = running.url + path.replace("{agent}", "ada")
        async with running.http.post(asked, data=b"{}", headers={"Origin": origin}) as answer:
            told = await answer.json()
        assert answer.status == 403, path
        assert "--allow-origin" in told["error"]["message"]
        assert keys_of(told) in KEYS.values()
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert (await running.get("/ledger"))["rows"] == []


async def test_the_lanes_own_page_is_served_and_so_is_whoever_is_no_browser(running: Running) -> None:
    for headers in ({"Origin": running.url}, {}):
        assert (await running.post("/v1/chat/completions", HELLO, **headers))[0] == 200


@pytest.mark.parametrize(
    "host", ["page.example", "page.example:8088", "127.0.0.1.page.example", "10.0.0.1", "[", ""]
)
async def test_under_anothers_name_nothing_at_all_is_served(running: Running, host: str) -> None:
    for method, path in (("GET", "/ledger"), ("GET", "/health"), ("POST", "/signals")):
        said = await asked_as(running, host, method, path)
        assert b" 403 " in said.split(b"\r\n")[0] or b" 400 " in said.split(b"\r\n")[0], said
        assert b"rows" not in said
    assert b"403" in (await asked_as(running, "page.example")).split(b"\r\n")[0]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8088", "lane.localhost", "127.0.0.1:8088", "[::1]:8088"])
async def test_this_machines_names_are_served(running: Running, host: str) -> None:
    assert (await asked_as(running, host)).startswith(b"HTTP/1.1 200 ")


async def test_an_allowed_page_asks_and_reads(start: Start) -> None:
    async with start(allow_origin=(PAGE,)) as running:
        asks = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, x-ridealong-agent",
        }
        async with running.http.options(f"{running.url}/v1/chat/completions", headers=asks) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Headers"] == "content-type, x-ridealong-agent"
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        for body, status in ((HELLO, 200), (HELLO | {"stream": True}, 200), ({}, 400)):
            async with running.http.post(
                f"{running.url}/v1/chat/completions", json=body, headers={"Origin": PAGE}
            ) as answer:
                assert answer.status == status
                assert answer.headers["Access-Control-Allow-Origin"] == PAGE
                assert answer.headers["Vary"] == "Origin"
        assert (await running.post("/signals", [], Origin="https://other.example"))[0] == 403
        assert (await asked_as(running, "page.example")).startswith(b"HTTP/1.1 200 ")


async def test_where_a_key_is_needed_the_key_decides(start: Start) -> None:
    async with start(api_key="operators-own-key") as running:
        key = {"Authorization": "Bearer operators-own-key"}
        foreign = {"Origin": PAGE, "Host": "lane.example"}
        assert (await running.post("/v1/chat/completions", HELLO, **foreign, **key))[0] == 200
        assert (await running.post("/v1/chat/completions", HELLO, **foreign))[0] == 401


@pytest.mark.parametrize("origin", ["*", "page.example", "https://page.example/", "https://page.example/x"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"allow-origin.*scheme://host"):
        read_settings({"allow_origin": [origin]}, {})
