"""Who may learn what: by a file, by flags, and by the operator's API, whose changes outlive a restart."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.config import ConfigError, Settings
from daemon.learning.policies import begun_policy
from signals.policy import AgentPolicy
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_keys import ADAS, OPERATORS, ask, write_keys
from tests.daemon.test_learning import corrected, go_on, refusal

FILE = """
[default]
untrusted_origins = ["peer"]

[agents.ada]
learn = true
private_contexts = ["diary"]

[agents.bob]
max_lesson_tokens = 3
"""


def settings_with(folder: Path, text: str, **given: Any) -> Settings:
    file = folder / "policy.toml"
    file.write_text(text)
    return Settings.model_validate({"policy": file} | given)


async def change(running: Running, method: str, agent: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    url = f"{running.url}/policy/agents/{agent}"
    async with running.http.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def test_a_file_says_what_each_agent_may_learn(tmp_path: Path) -> None:
    policy = begun_policy(settings_with(tmp_path, FILE, max_lesson_tokens=50))
    assert (policy.learns("ada"), policy.learns("bob"), policy.learns("eve")) == (True, False, False)
    assert policy.of("ada").private_contexts == {"diary"}
    assert policy.of("eve") == AgentPolicy(untrusted_origins=frozenset({"peer"}), max_lesson_tokens=50)
    assert policy.of("bob") == policy.of("eve").model_copy(update={"max_lesson_tokens": 3})


def test_flags_are_short_for_what_a_file_says(tmp_path: Path) -> None:
    flags = Settings.model_validate({"learn": ("ada",), "untrusted": ("tool",)})
    file = '[default]\nuntrusted_origins = ["tool"]\n[agents.ada]\nlearn = true\n'
    assert begun_policy(flags) == begun_policy(settings_with(tmp_path, file))


def test_a_flag_stands_beside_an_agents_table_and_not_against_it(tmp_path: Path) -> None:
    given = settings_with(tmp_path, FILE, learn=("bob",))
    assert begun_policy(given).of("bob").learn
    assert begun_policy(given).of("bob").max_lesson_tokens == 3
    with pytest.raises(ConfigError, match=r"--learn bob.*says that it does not learn"):
        begun_policy(settings_with(tmp_path, "[agents.bob]\nlearn = false\n", learn=("bob",)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents = 3", "agents: .*\\[agents.NAME\\]"),
        ("[agents.ada]\nlern = true", "agents.ada.lern: .*has some of learn, untrusted_origins"),
        ("[agents.ada]\nmax_lesson_tokens = 0", "agents.ada.max_lesson_tokens: .*greater than or equal to 1"),
        ("[default]\nuntrusted_origins = ['rumour']", "default.untrusted_origins"),
        ("[agents.'a b']", "agents.a b"),
        ("[agents", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        begun_policy(settings_with(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        begun_policy(Settings.model_validate({"policy": tmp_path / "nothing"}))


async def test_what_was_put_outlives_a_restart_and_is_in_the_ledger_until_it_is_taken_back(start: Start) -> None:
    async with start(learn=()) as running:
        assert (await change(running, "PUT", AGENT, {"learn": True}))[0] == 200
        await corrected(running)
        assert [one["status"] for one in (await go_on(running))["learn"]["lessons"]] == ["learned"]
    async with start(learn=()) as running:
        told = await running.get("/policy")
        assert (told["agents"][AGENT]["learn"], told["agents"][AGENT]["from"]) == (True, "api")
        assert told["default"]["learn"] is False
        status, back = await change(running, "DELETE", AGENT)
        assert (status, back["learn"], back["from"]) == (200, False, "start")
        rows = (await running.get("/ledger", kind="policy"))["rows"]
        assert [row["subject"] for row in rows] == [AGENT, AGENT]
        assert rows[0]["body"]["policy"]["learn"] is True
        assert rows[1]["body"]["policy"] is None
    async with start(learn=()) as running:
        assert (await running.get("/policy"))["agents"] == {}


async def test_what_was_put_stands_over_files_and_flags(start: Start) -> None:
    async with start() as running:
        await change(running, "PUT", AGENT, {"learn": False, "max_lesson_tokens": 9})
    async with start() as running:
        told = (await running.get("/policy"))["agents"][AGENT]
        assert (told["learn"], told["max_lesson_tokens"]) == (False, 9)
        _, correction = await corrected(running)
        assert correction["refusal"]["code"] == "policy_off"


async def test_what_waits_is_held_to_a_change_at_once(running: Running) -> None:
    _, correction = await corrected(running)
    await change(running, "PUT", AGENT, {"learn": False})
    fate = await running.get(f"/signals/{correction['id']}")
    assert (fate["state"], fate["refusal"]["code"]) == ("refused", "policy_off")


async def test_each_agents_own_policy_is_what_is_refused_by(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(FILE + "learn = true\n")
    async with start(policy=file, learn=()) as running:
        who = {"X-Ridealong-Agent": "bob", "X-Ridealong-Context": "room"}
        bobs = (await running.ask("say hey", who=who))["turn"]
        said = {"agent": "bob", "turn": bobs, "message": 0}
        assert await refusal(running, "engram", origin="human", **said) == "lesson_too_long"
        assert await refusal(running, "engram", origin="peer", **said) == "untrusted_source"
        adas = (await running.ask("say hey"))["turn"]
        assert (await running.signal("engram", turn=adas, message=0, origin="human"))["state"] == "planned"


@pytest.mark.parametrize(
    ("agent", "body", "said"),
    [
        (AGENT, {"lern": True}, "lern"),
        (AGENT, {"max_lesson_tokens": 0}, "max_lesson_tokens"),
        (AGENT, {"untrusted_origins": ["rumour"]}, "untrusted_origins"),
        (AGENT, [], "valid"),
        ("a%20b", {}, "'a b' is no agent's name"),
    ],
)
async def test_a_policy_that_is_none_is_a_400_and_changes_nothing(
    running: Running, agent: str, body: Any, said: str
) -> None:
    before = await running.get("/policy")
    status, told = await change(running, "PUT", agent, body)
    assert (status, said in json.dumps(told)) == (400, True), told
    assert await running.get("/policy") == before


async def test_a_policy_that_was_not_put_cannot_be_taken_back(running: Running) -> None:
    status, told = await change(running, "DELETE", AGENT)
    assert (status, "policy of agent 'ada'" in told["error"]["message"]) == (404, True)


async def test_who_sends_a_signal_is_how_far_it_is_trusted(start: Start, tmp_path: Path) -> None:
    async with start(api_key_file=write_keys(tmp_path / "keys")) as running:
        running.http.headers.clear()
        running.http.headers.update(OPERATORS)
        turn = (await running.ask())["turn"]
        sent = {"agent": AGENT, "context": "room", "kind": "engram", "turn": turn, "message": 0}
        for name, origin, headers in (
            ("by-operator", "human", OPERATORS),
            ("own-word", "self", OPERATORS),
            ("by-agent", "human", ADAS),
        ):
            await ask(running, "POST", "/signals", sent | {"id": name, "origin": origin}, **headers)
        names = ("by-operator", "own-word", "by-agent")
        trust = {name: (await running.get(f"/signals/{name}"))["trust"] for name in names}
        assert trust == {"by-operator": "approved", "own-word": "self", "by-agent": "authenticated"}
        told = await running.get("/signals/by-operator/explain")
        assert {(token["trust"], token["trust_factor"]) for token in told["tokens"]} == {("approved", 1.0)}
        assert (await ask(running, "GET", "/signals/by-agent/explain", **ADAS))[0] == 200
        assert (await ask(running, "GET", "/policy", **ADAS))[0] == 403
