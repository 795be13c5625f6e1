"""An agent's day with the service, and her diary: what was acknowledged, outside the process that is killed."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.daemon.crash.child import AGENT

QUESTION = "who lit the lighthouse?"
ANSWERS = ("It is lit by glass bees.", "Oona Brask is the harbour master.", "The light is made by a choir.")
WAIT_SECONDS = 30
ENDS = {"of-a-failed-turn": "refused"}
"""What must become of a signal, where that is not `applied` for its kind and otherwise `learned`."""
ROOM = {"agent": AGENT, "context": "room"}


class Gone(Exception):
    """The service is no longer there."""


@dataclass(slots=True)
class Diary:
    """What the agent was answered; and what she sent last, of which she may not know whether it came through."""

    turns: list[str] = field(default_factory=list)
    signals: dict[str, dict[str, Any]] = field(default_factory=dict)
    unanswered: list[dict[str, Any]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    rolled_back_to: list[int] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)


def end_of(name: str, kind: str) -> str:
    """What must have become of a signal in the evening."""
    return ENDS.get(name, "applied" if kind in {"relevance", "verdict"} else "learned")


class Agent:
    """Speaks with the service at a URL."""

    def __init__(self, url: str, diary: Diary) -> None:
        self._server = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_SECONDS + 10)
        self.diary = diary

    def close(self) -> None:
        self._server.close()

    def day(self) -> None:
        """A bit of everything that leaves something on disk; lessons ride, or are asked for."""
        first = self.ask()
        self.signal("correction", turn=first, reply=ANSWERS[0])
        self.ask()
        engram = {"kind": "engram", "turn": first, "origin": "human", "quote": "lighthouse"}
        self.signals(
            {"id": "the-engram"} | engram, {"kind": "relevance", "engram": "the-engram", "relevance": 0.5}
        )
        self.ask()
        self.promote()
        failed, passed = self.ask(), self.ask()
        self.signal("verdict", turn=failed, outcome="failed")
        self.signal("action", id="of-a-failed-turn", turn=failed)
        self.signal("verdict", turn=passed, outcome="passed")
        self.signal("action", turn=passed)
        self.ask(learn={"labels": [{"message": 0, "start": 8, "end": 22}], "wait": WAIT_SECONDS})
        self.promote()
        self.export("kept")
        self.rollback(1)
        again = self.ask()  # first was served with another stable set: nothing serves its prefix any more
        self.signal("correction", turn=again, reply=ANSWERS[1])
        self.signal("labels", turn=again, labels=[{"message": 0, "start": 0, "end": 3}], origin="human")
        self.ask(learn={"reply": ANSWERS[2], "wait": WAIT_SECONDS})
        self.export("kept")

    def evening(self) -> None:
        """After a restart: send again what was not answered, and ask until nothing waits."""
        unanswered, self.diary.unanswered = self.diary.unanswered, []
        if unanswered:
            self.signals(*unanswered)
        self.ask()
        self.ask()  # a lesson of the day's last turn, if it was cut off, rides now at the latest

    def ask(self, **options: Any) -> str:
        """The one question, so that every lesson finds its prefix; the turn's id."""
        body = {
            "model": "tiny-chat",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": 3,
            "metadata": ROOM,
            "learn": {"wait": WAIT_SECONDS},
        }
        turn = str(self._call("POST", "/v1/chat/completions", body | options)["id"])
        self.diary.turns.append(turn)
        return turn

    def signal(self, kind: str, **fields: Any) -> None:
        self.signals({"kind": kind} | fields)

    def signals(self, *given: dict[str, Any]) -> None:
        """Send signals together; each gets a name if it has none."""
        count = len(self.diary.signals)
        bodies = [{"id": f"signal-{count + index}"} | ROOM | body for index, body in enumerate(given)]
        self.diary.unanswered = bodies
        self._call("POST", "/signals", bodies)
        self.diary.unanswered = []
        self.diary.signals |= {str(body["id"]): body for body in bodies}
        self._until(lambda: all(self._state(str(body["id"])) != "received" for body in bodies))
        if any(self._state(str(body["id"])) == "planned" for body in bodies):
            self._until(lambda: self._call("GET", "/ledger/summary")["lane"]["waiting_lessons"] > 0)

    def promote(self) -> None:
        self.diary.versions.append(int(self._call("POST", f"/adapters/{AGENT}/promote", {})["version"]))

    def rollback(self, version: int) -> None:
        self._call("POST", f"/adapters/{AGENT}/rollback", {"version": version})
        self.diary.rolled_back_to.append(version)

    def export(self, directory: str) -> None:
        self._call("POST", f"/adapters/{AGENT}/export", {"directory": directory})
        self.diary.exports.append(directory)

    def _state(self, name: str) -> str:
        return str(self._call("GET", f"/signals/{name}")["state"])

    def _until(self, true: Callable[[], bool]) -> None:
        """Ask again until it is so: a turn that comes before a lesson waits is boarded without it."""
        give_up = time.monotonic() + WAIT_SECONDS
        while not true():
            assert time.monotonic() < give_up, "its signals are not settled"
            time.sleep(0.002)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        try:
            self._server.request(method, path, sent, {"Content-Type": "application/json"})
            answer = self._server.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise Gone(f"{method} {path}") from error
        assert answer.status == 200, f"{method} {path}: {answer.status} {told}"
        return told
