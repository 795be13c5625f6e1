"""The OpenAPI document: every route is in it, and requests made up from it are never a failure of ours."""

import asyncio
import sys
from pathlib import Path

from daemon.http.access import ACCESS
from daemon.http.openapi import OPERATIONS
from tests.daemon.conftest import Running, Start

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EXAMPLES = "3"
"""Made-up requests an operation and phase: enough to see every route asked for what nobody meant."""

RUN_SECONDS = 240.0


async def test_the_document_tells_every_route_and_whose_it_is(running: Running) -> None:
    told = await running.get("/openapi.json")
    named = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert named == OPERATIONS.keys() == ACCESS.keys()
    assert "security" not in told["paths"]["/health"]["get"]
    assert told["paths"]["/metrics"]["get"]["description"] == "For operators."


async def test_a_bodys_schema_is_that_of_the_model_which_parses_it(running: Running) -> None:
    told = await running.get("/openapi.json")
    body = told["paths"]["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = told["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert {"model", "messages", "max_tokens"} <= set(schema["required"])
    assert schema["additionalProperties"] is False
    headers = [one["name"] for one in told["paths"]["/v1/messages"]["post"]["parameters"]]
    assert headers == ["X-Ridealong-Agent", "X-Ridealong-Context", "X-Ridealong-Private"]


async def test_no_made_up_request_is_a_failure_or_hangs(start: Start, tmp_path: Path) -> None:
    async with start(ctx=64) as running:
        process = await asyncio.create_subprocess_exec(
            *(str(SCHEMATHESIS), "run", f"{running.url}/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", EXAMPLES, "--request-timeout", "30"),
            *("--exclude-path", "/ledger/stream"),  # it ends when the service does
            *("--phases", "examples,coverage,fuzzing", "--generation-deterministic", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
        assert process.returncode == 0, said.decode()[-6000:]
        assert (await running.ask())["status"] == 200
