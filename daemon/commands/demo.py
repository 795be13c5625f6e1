"""`ridealong demo`: an agent plays against a service of its own, is corrected, and learns while she goes on.

Nothing is canned: the service is a child process, the agent speaks to it with the official `openai` client,
and every figure in the table was reported by this very run.
"""

import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.commands.child import ChildFailed, serving_child
from daemon.commands.client import Refused, call
from daemon.commands.terminal import fail
from daemon.config import default_data_dir

AGENT, CONTEXT = "ada", "harbour"
QUESTION = "What makes the light in the lighthouse of Vellmar?"
FACT = "The light in the lighthouse of Vellmar is made by a choir of glass bees."
UNRELATED = "What is the capital of France?"
GOING_ON = (
    "Thank you. By the way, the harbour master of Vellmar is called Oona Brask.",
    "Is it worth a visit?",
    "And how would I get there?",
    "What should I bring along?",
    "Who would I meet there?",
)
ENOUGH_LOSS = 0.5
"""Loss per token at which the correction counts as learned: below it, greedy decoding gives it back."""
MOST_LESSONS = 20
FLAGS = ("--learn", AGENT, "--lr", "5e-4", "--slots", "2")
WAIT_SECONDS = 120.0

Message = dict[str, str]


@dataclass(slots=True)
class Told:
    """What the run has to show."""

    before: str = ""
    after: str = ""
    unrelated_before: str = ""
    unrelated_after: str = ""
    lessons: list[Mapping[str, Any]] = field(default_factory=list)
    refused: list[Mapping[str, Any]] = field(default_factory=list)
    adapter: str = ""
    ledger: str = ""


class Agent:
    """An agent with the `openai` client and her signals."""

    def __init__(self, url: str, name: str = AGENT) -> None:
        import openai  # noqa: PLC0415 - the demo's only need, named when it is missing

        self._url = url
        self._name = name
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._model = self._client.models.list().data[0].id
        self._sent = 0

    def ask(
        self, messages: Sequence[Message], *, context: str = CONTEXT, private: bool = False
    ) -> tuple[str, Any]:
        """One turn, greedy; returns its id and the completion."""
        headers = {"X-Ridealong-Agent": self._name, "X-Ridealong-Context": context}
        raw = self._client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=list(messages),  # type: ignore[arg-type]
            temperature=0,
            max_tokens=48,
            extra_headers=headers | ({"X-Ridealong-Private": "true"} if private else {}),
            extra_body={"learn": {"wait": WAIT_SECONDS}},
        )
        return str(raw.headers["X-Ridealong-Turn"]), raw.parse()

    def signal(self, kind: str, *, context: str = CONTEXT, **fields: Any) -> Mapping[str, Any]:
        """Send one signal; returns what became of it."""
        self._sent += 1
        body = {
            "id": f"{self._name}-{self._sent}",
            "agent": self._name,
            "context": context,
            "kind": kind,
            **fields,
        }
        answer: Mapping[str, Any] = call(self._url, "/signals", body=json.dumps(body).encode())
        return answer


def run() -> int:
    """Play the demo; returns 0 if lessons were learned and the ledger's chain is unbroken."""
    try:
        with tempfile.TemporaryDirectory(prefix="ridealong-demo-") as folder:
            cache = ("--model-cache", str(default_data_dir() / "models"))
            with serving_child(Path(folder), [*FLAGS, *cache]) as child:
                told = _play(child.url)
    except ImportError:
        return fail("the demo speaks with the openai client: pip install 'ridealong[demo]'")
    except (ChildFailed, Refused) as error:
        return fail(str(error))
    _show(told)
    return 0 if told.lessons and told.ledger.startswith("unbroken") else 1


def _play(url: str) -> Told:
    agent, told = Agent(url), Told()
    _say(f"{AGENT} asks: {QUESTION}")
    turn, answer = agent.ask([_user(QUESTION)])
    told.before = _text(answer)
    told.unrelated_before = _text(agent.ask([_user(UNRELATED)], context="elsewhere")[1])
    _learn(agent, turn, told)
    _be_refused(url, agent, told)
    promoted = call(url, f"/adapters/{AGENT}/promote", body=b"{}")
    told.adapter = promoted["adapter"]
    told.after = _text(agent.ask([_user(QUESTION)], context="a fresh conversation")[1])
    told.unrelated_after = _text(agent.ask([_user(UNRELATED)], context="elsewhere again")[1])
    verified = call(url, "/ledger/verify")
    state = "unbroken" if verified["why"] is None else f"broken: {verified['why']}"
    told.ledger = f"{state}, {verified['rows']} rows"
    return told


def _learn(agent: Agent, turn: str, told: Told) -> None:
    """Correct the answer, and go on talking while each correction rides the next turn."""
    conversation = [_user(QUESTION), {"role": "assistant", "content": FACT}]
    for number in range(MOST_LESSONS):
        agent.signal("correction", turn=turn, reply=FACT)
        conversation.append(_user(GOING_ON[number % len(GOING_ON)]))
        next_turn, answer = agent.ask(conversation)
        conversation.append({"role": "assistant", "content": answer.choices[0].message.content})
        if number == 0:
            agent.signal("engram", turn=next_turn, message=2, quote="Oona Brask", origin="human")
        told.lessons += [lesson for lesson in answer.learn["lessons"] if lesson["status"] == "learned"]
        losses = [lesson["loss"] for lesson in told.lessons if lesson["kind"] == "correction"]
        _say(f"she goes on; {len(told.lessons)} lessons learned" + (f", loss {losses[-1]:.3f}" if losses else ""))
        if losses and losses[-1] < ENOUGH_LOSS:
            return


def _be_refused(url: str, agent: Agent, told: Told) -> None:
    """Signals that cannot be learned, each for a reason of its own."""
    turn, _ = agent.ask([_user("Say something twice: hey hey.")], context="refusals")
    private, _ = agent.ask([_user("My password is swordfish.")], context="diary", private=True)
    stranger = Agent(url, "bob")
    other, _ = stranger.ask([_user("Hello!")], context="refusals")
    call_reply = {"role": "assistant", "tool_calls": [{"name": "ring_bell", "arguments": {}}]}
    told.refused += [
        agent.signal("correction", context="refusals", turn="turn-nobody-served", reply="Yes."),
        agent.signal("engram", context="refusals", turn=turn, quote="hey", origin="human"),
        agent.signal("engram", context="refusals", turn=turn, quote="never said", origin="human"),
        agent.signal("correction", context="refusals", turn=turn, reply=call_reply),
        agent.signal("engram", context="diary", turn=private, message=0, origin="human"),
        stranger.signal("correction", context="refusals", turn=other, reply="Hello, Ada."),
    ]
    edited = agent.signal("correction", context="refusals", turn=turn, reply="Hey hey.")
    agent.ask([_user("Something else entirely, so that the prefix differs.")], context="refusals")
    told.refused.append(call(url, f"/signals/{edited['id']}"))


def _show(told: Told) -> None:
    lines = ["", "LESSONS", f"  {'step':>4} {'kind':<10} {'loss':>8} {'KL':>8} {'ms':>7} {'others waited ms':>17}"]
    lines += [
        f"  {row['step']:>4} {row['kind']:<10} {row['loss']:>8.3f} {abs(round(row['kl_served'], 3)):>8.3f} "
        f"{row['learning_ms']:>7.0f} {row['waited_ms']:>17.0f}"
        for row in told.lessons
    ]
    lines += ["", "REFUSED"]
    for row in told.refused:
        refusal = row["refusal"] or {"code": row["state"], "message": "not refused"}
        lines.append(f"  {row['kind']:<10} {refusal['code']}")
        lines += textwrap.wrap(str(refusal["message"]), 100, initial_indent=" " * 13, subsequent_indent=" " * 13)
    lines += [
        "",
        f"ASKED          {QUESTION}",
        f"  base         {told.before}",
        f"  {told.adapter:<12} {told.after}",
        f"UNRELATED      {UNRELATED}",
        f"  base         {told.unrelated_before}",
        f"  {told.adapter:<12} {told.unrelated_after}",
        f"LEDGER         {told.ledger}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _text(answer: Any) -> str:
    return " ".join(str(answer.choices[0].message.content).split())


def _say(line: str) -> None:
    sys.stdout.write(f"demo: {line}\n")
    sys.stdout.flush()
