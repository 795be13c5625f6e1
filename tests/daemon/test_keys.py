"""Who may ask for what: operators for everything, an agent for what is hers, nobody else for anything."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from daemon.config import Settings
from daemon.http.access import ACCESS, Access
from daemon.http.keys import OPERATOR, BadKeys, Caller, Keys
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_cli import command
from tests.daemon.test_learning import corrected, go_on

KEYS = {"operator": "operator-0123456789abcdef", AGENT: "ada-0123456789abcdef", "bob": "bob-0123456789abcdef"}
OPERATORS, ADAS, BOBS = ({"Authorization": f"Bearer {key}"} for key in KEYS.values())
ASK = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def write_keys(path: Path, text: str | None = None, *, mode: int = 0o600) -> Path:
    lines = f"# who may ask\noperator {KEYS['operator']}\n\nagent {AGENT} {KEYS[AGENT]}\nagent bob {KEYS['bob']}\n"
    path.write_text(lines if text is None else text)
    path.chmod(mode)
    return path


@pytest.fixture
async def guarded(start: Start, tmp_path: Path) -> AsyncIterator[Running]:
    """A service with an operator's key, ada's and bob's."""
    async with start(api_key_file=write_keys(tmp_path / "keys"), learn=(AGENT, "bob")) as made:
        made.http.headers.clear()
        yield made


async def ask(running: Running, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with running.http.request(method, running.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def paths() -> Iterator[tuple[str, str, Access]]:
    for (method, path), access in ACCESS.items():
        yield method, path.format(id="x", seq="1", agent=AGENT, name="page.css"), access


def test_a_file_of_keys_says_whose_each_is(tmp_path: Path) -> None:
    keys = Keys.of("the-environments-own-key", write_keys(tmp_path / "keys"))
    assert keys.caller_with("the-environments-own-key") == OPERATOR
    assert keys.caller_with(KEYS["operator"]) == OPERATOR
    assert keys.caller_with(KEYS["bob"]) == Caller("bob")
    for nobodys in ("", "bob", KEYS["bob"][:-1], KEYS["bob"] + "f", KEYS["bob"].upper(), "é" * 20, "\udcff" * 20):
        assert keys.caller_with(nobodys) is None
    assert not Keys.of(None, None)


LONG = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"operator {LONG}\nagent ada {LONG}", "line 2 has the same key as .*line 1"),
        ("operator 0123456789abcde", "line 1: a key is at least 16"),
        (f"operator {LONG}é", "line 1: a key is at least 16 ASCII"),
        (f"# one\n\nadmin {LONG}", "line 3 is not understood.*agent NAME KEY"),
        (f"agent {LONG}", "line 1 is not understood"),
        (f"operator {LONG} {LONG}", "line 1 is not understood"),
        (f"agent a/b {LONG}", "line 1: 'a/b' is no agent's name"),
        ("# nobody yet\n", "holds no key"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line_and_never_told(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BadKeys, match=said) as refused:
        Keys.of(None, write_keys(tmp_path / "keys", text))
    assert LONG[:-1] not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o611])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadKeys, match=rf"mode {mode:04o}.*chmod 600"):
        Keys.of(None, write_keys(tmp_path / "keys", mode=mode))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="cannot be read"):
        Keys.of(None, tmp_path / "nothing")


@pytest.mark.parametrize("key", ["", "short"])
def test_a_short_key_of_the_environment_is_refused(key: str) -> None:
    with pytest.raises(BadKeys, match="--api-key: a key is at least 16"):
        Keys.of(key, None)


def test_a_key_is_in_nothing_that_is_printed(tmp_path: Path) -> None:
    settings = Settings.model_validate({"api_key": KEYS["operator"]})
    keys = Keys.of(KEYS["operator"], None)
    assert KEYS["operator"] not in repr(settings) + str(settings) + settings.model_dump_json() + repr(vars(keys))


async def test_every_route_says_whose_it_is(running: Running) -> None:
    assert running.service._parts is not None
    routes = running.service._parts.app.router.routes()
    there = {(route.method, route.resource.canonical) for route in routes if route.resource is not None}
    assert {(method, path) for method, path in there if method != "HEAD"} == set(ACCESS)


async def test_without_a_key_only_health_and_the_pages_files_are_told(guarded: Running) -> None:
    gone = [("GET", "/nothing", Access.OPERATORS), ("DELETE", "/ledger", Access.OPERATORS)]
    for method, path, access in [*paths(), *gone]:
        for headers in (
            {},
            {"Authorization": f"Bearer {LONG}"},
            {"X-Api-Key": LONG},
            {"Authorization": "Basic x"},
        ):
            async with guarded.http.request(method, guarded.url + path, headers=headers) as answer:
                if access is Access.EVERYONE:
                    assert answer.status == 200
                    continue
                told = await answer.json()
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                assert "x-api-key" in told["error"]["message"]


async def test_a_refusal_has_the_shape_of_its_dialect(guarded: Running) -> None:
    _, told = await ask(guarded, "POST", "/v1/messages", {})
    assert (told["type"], told["error"]["type"]) == ("error", "authentication_error")
    _, told = await ask(guarded, "POST", "/completion", {})
    assert told["error"]["code"] == 401
    _, told = await ask(guarded, "POST", "/v1/chat/completions", {})
    assert (told["error"]["type"], told["error"]["code"]) == ("authentication_error", "invalid_api_key")


async def test_an_operator_may_do_everything_and_an_agent_what_is_not_the_operators(guarded: Running) -> None:
    for method, path, access in paths():
        for header in (OPERATORS, {"x-api-key": KEYS["operator"]}):
            async with guarded.http.request(method, guarded.url + path, headers=header) as answer:
                assert answer.status not in {401, 403}, (method, path)
        async with guarded.http.request(method, guarded.url + path, headers=ADAS) as answer:
            assert (answer.status == 403) is (access is Access.OPERATORS), (method, path)
    status, _ = await ask(guarded, "GET", "/nothing", **ADAS)
    assert status == 404


async def test_the_official_clients_give_their_keys_as_they_do(guarded: Running) -> None:
    for key, known in ((KEYS[AGENT], True), (LONG, False)):
        ours = openai.AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)
        theirs = anthropic.AsyncAnthropic(base_url=guarded.url, api_key=key, max_retries=0)
        async with ours, theirs:
            if known:
                assert (await ours.models.list()).data
                assert (await theirs.messages.create(**ASK)).content  # type: ignore[call-overload]
                continue
            with pytest.raises(openai.AuthenticationError):
                await ours.models.list()
            with pytest.raises(anthropic.AuthenticationError):
                await theirs.messages.create(**ASK)  # type: ignore[call-overload]


async def test_an_agents_key_speaks_for_that_agent_and_no_other(guarded: Running) -> None:
    path = "/v1/chat/completions"
    for headers, body in (
        ({}, ASK),
        ({"X-Ridealong-Agent": AGENT}, ASK),
        ({}, ASK | {"metadata": {"agent": AGENT, "context": "room"}}),
    ):
        status, _ = await ask(guarded, "POST", path, body, **ADAS, **headers)
        assert status == 200
    for headers, body in (({"X-Ridealong-Agent": "bob"}, ASK), ({}, ASK | {"metadata": {"agent": "bob"}})):
        status, told = await ask(guarded, "POST", path, body, **ADAS, **headers)
        assert (status, "'ada'" in told["error"]["message"], "'bob'" in told["error"]["message"]) == (
            403,
            True,
            True,
        )
    _, told = await ask(guarded, "GET", "/ledger?kind=turn", **OPERATORS)
    assert [row["agent"] for row in told["rows"]] == [AGENT] * 3
    status, _ = await ask(guarded, "POST", path, ASK, **OPERATORS, **{"X-Ridealong-Agent": "bob"})
    assert status == 200


async def test_an_agents_key_signals_for_that_agent_and_no_other(guarded: Running) -> None:
    own = {"id": "a", "agent": AGENT, "context": "", "kind": "action", "turn": "t"}
    status, told = await ask(guarded, "POST", "/signals", [own, own | {"id": "b", "agent": "bob"}], **ADAS)
    assert (status, "'bob'" in told["error"]["message"]) == (403, True)
    _, told = await ask(guarded, "GET", "/ledger?kind=signal", **OPERATORS)
    assert not told["rows"], "nothing of a refused list is kept"
    assert (await ask(guarded, "POST", "/signals", own, **ADAS))[0] == 200


async def test_an_agent_reads_what_is_hers_and_of_others_not_even_that_it_is_there(guarded: Running) -> None:
    guarded.http.headers.update(OPERATORS)
    _, correction = await corrected(guarded)
    await go_on(guarded)
    guarded.http.headers.clear()
    _, own = await ask(guarded, "GET", "/ledger?limit=1000", **ADAS)
    assert own["rows"]
    assert {row["agent"] for row in own["rows"]} == {AGENT}
    assert await ask(guarded, "GET", "/ledger?limit=1000", **OPERATORS) == (200, own)
    seq = own["rows"][-1]["seq"]
    for path in (f"/ledger/{seq}", f"/signals/{correction['id']}"):
        assert (await ask(guarded, "GET", path, **ADAS))[0] == 200
        status, told = await ask(guarded, "GET", path, **BOBS)
        name = path.split("/")[2]
        absent, other = await ask(guarded, "GET", path.replace(name, "987654321"), **BOBS)
        assert (status, told) == (absent, json.loads(json.dumps(other).replace("987654321", name))) == (404, told)
    assert len((await ask(guarded, "GET", "/adapters", **ADAS))[1]) == 1
    assert (await ask(guarded, "GET", "/adapters", **BOBS)) == (200, [])
    assert (await ask(guarded, "GET", "/ledger", **BOBS))[1]["rows"] == []
    assert (await ask(guarded, "GET", f"/ledger?agent={AGENT}", **BOBS))[0] == 403


async def test_an_agent_sees_the_slots_and_not_who_has_them(guarded: Running) -> None:
    _, told = await ask(guarded, "GET", "/slots", **ADAS)
    _, all_of_it = await ask(guarded, "GET", "/slots", **OPERATORS)
    assert [slot.keys() for slot in told] == [slot.keys() for slot in all_of_it]
    assert {(slot["stable"], slot["turn"], slot["lesson"]) for slot in told} == {(None, None, None)}
    assert {slot["stable"] for slot in all_of_it} == {"base"}


async def test_who_may_not_ask_is_told_so_before_her_body_is_read(guarded: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(guarded.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    async with asyncio.timeout(10):
        assert b" 401 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_no_key_is_in_the_log(guarded: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for headers in (OPERATORS, ADAS, {"X-Api-Key": KEYS["bob"]}, {"Authorization": f"Bearer {LONG}"}):
            await ask(guarded, "GET", "/ledger", **headers)
            await ask(guarded, "POST", "/v1/completions", {"prompt": 3}, **headers)
    assert not [key for key in (*KEYS.values(), LONG) if key in caplog.text]


async def test_the_command_line_gives_its_key(
    guarded: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("adapters", "--url", guarded.url)
    assert await command(*asked, "ls") == 1
    assert "x-api-key" in capsys.readouterr().err
    assert await command(*asked, "--api-key", KEYS["operator"], "ls") == 0
    monkeypatch.setenv("RIDEALONG_API_KEY", KEYS["operator"])
    assert await command(*asked, "ls") == 0
    assert await command("signal", "--url", guarded.url, "--show", "nothing") == 1
    assert "there is no signal 'nothing'" in capsys.readouterr().err


async def test_without_keys_everyone_on_this_machine_is_an_operator(running: Running) -> None:
    async with running.http.get(f"{running.url}/metrics", headers={"Authorization": "Bearer none"}) as answer:
        assert answer.status == 200
