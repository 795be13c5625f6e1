"""The command line's way to a running service: plain HTTP, JSON in, JSON or a small table out."""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from daemon.commands.terminal import fail

TIMEOUT_SECONDS = 60.0
"""Longer than a promotion takes on a busy lane; a service that is silent for so long is not there."""


class Refused(Exception):
    """The service refused the request, or there is none at that address."""


def call(
    url: str,
    path: str,
    *,
    body: bytes | None = None,
    content_type: str = "application/json",
    key: str | None = None,
) -> Any:
    """Ask the service: GET without a body, POST with one; returns the decoded JSON.

    Raises:
        Refused: with the service's own message.
    """
    headers = {"Content-Type": content_type} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    request = urllib.request.Request(url.rstrip("/") + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Refused(_message(error)) from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise Refused(
            f"there is no service at {url}: {error}; start one with ridealong serve, or give --url"
        ) from error


def run_signal(given: argparse.Namespace) -> int:
    """`ridealong signal …`."""
    if given.action == "explain":
        return _explain(given)
    if given.show:
        return _print(given, f"/signals/{quote(given.show, safe='')}")
    if given.file:
        return _send_signals(given, given.file)
    return fail("say what to do: --file FILE sends signals, --show ID and explain ID ask about one")


def _explain(given: argparse.Namespace) -> int:
    """Print a signal's lesson, a token a line with where its weight comes from."""
    path = f"/signals/{quote(given.id, safe='')}/explain"
    if given.json:
        return _print(given, path)
    try:
        told = call(given.url, path, key=given.api_key)
    except Refused as error:
        return fail(str(error))
    lines = [f"{told['kind']} {told['id']}: {told['state']}, lesson {told['lesson'] or 'none'}"]
    if told["refusal"] is not None:
        lines.append(f"{told['refusal']['code']}: {told['refusal']['message']}")
    lines += [_token_line(token) for token in told["tokens"]]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _token_line(token: Mapping[str, Any]) -> str:
    line = f"{token['position']:>6}  {json.dumps(token['text'], ensure_ascii=False):<20} {token['weight']:<8.4g}"
    if token["signal"] is None:
        return f"{line} from what is not found again"
    factors = [f"relevance {token['relevance']:g}", f"{token['source']} {token['source_factor']:g}"]
    factors += [f"{token['trust']} {token['trust_factor']:g}", f"label {token['label']:g}"]
    return f"{line} = {' × '.join(factors)}, {token['signal']}"


def _send_signals(given: argparse.Namespace, file: str) -> int:
    """Send the signals of a file; prints what became of each."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        return fail(f"{file} cannot be read: {error}")
    try:
        json.loads(data)
        kind = "application/json"
    except ValueError:
        kind = "application/x-ndjson"  # a signal a line; the service says so if a line is not JSON
    return _print(given, "/signals", body=data, content_type=kind)


def run_adapters(given: argparse.Namespace) -> int:
    """`ridealong adapters …`."""
    if given.action == "ls":
        return _list_adapters(given)
    body = {key: vars(given)[key] for key in ("version", "directory") if vars(given).get(key) is not None}
    agent = quote(given.agent, safe="")
    return _print(given, f"/adapters/{agent}/{given.action}", body=json.dumps(body).encode())


def _list_adapters(given: argparse.Namespace) -> int:
    try:
        agents = call(given.url, "/adapters", key=given.api_key)
    except Refused as error:
        return fail(str(error))
    for own in agents:
        lane = own["lane"]
        where = "" if lane is None else f"  {lane['name']}{'' if lane['live'] else ', which is away'}"
        shadow = f"shadow at step {own['shadow']['steps']}  {own['shadow']['sha'][:12]}"
        sys.stdout.write(f"{own['agent']}  {shadow}{where}\n")
        for version in own["versions"]:
            mark = "  served" if version["state"] == "stable" else ""
            columns = f"step {version['steps']:<6} {version['sha'][:12]}  {version['created_at'][:19]}{mark}"
            sys.stdout.write(f"  @{version['version']:<4} {columns}\n")
    return 0


def _print(
    given: argparse.Namespace, path: str, *, body: bytes | None = None, content_type: str = "application/json"
) -> int:
    try:
        answer = call(given.url, path, body=body, content_type=content_type, key=given.api_key)
    except Refused as error:
        return fail(str(error))
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    return 0


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code}: {text[:200]}"
