"""The metrics, read as Prometheus reads them."""

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daemon.http.metrics import Backlog
from tests.daemon.conftest import Running, Start
from tests.daemon.test_learning import corrected, go_on

BOB = {"X-Ridealong-Agent": "bob"}
ENDLESS: dict[str, Any] = {"max_tokens": 200, "logit_bias": {"1": -100, "2": -100}}
Samples = dict[tuple[str, frozenset[str]], float]


async def scraped(running: Running, accept: str = "text/plain") -> Samples:
    """Every sample by its name, without the prefix, and its labels' values."""
    async with running.http.get(f"{running.url}/metrics", headers={"Accept": accept}) as answer:
        assert answer.status == 200
        text = await answer.text()
    parse = parse_openmetrics if "openmetrics" in answer.content_type else parse_text
    samples = [sample for family in parse(text) for sample in family.samples]
    assert all(sample.name.startswith("ridealong_") for sample in samples)
    return {
        (sample.name.removeprefix("ridealong_"), frozenset(sample.labels.values())): sample.value
        for sample in samples
    }


def value(samples: Samples, name: str, *labels: str) -> float:
    return samples[name, frozenset(labels)]


async def test_turns_are_counted_and_timed(running: Running) -> None:
    asked = (("a", 1), ("hello", 5), ("hello", 9))
    answers = [await running.ask(text, max_tokens=tokens) for text, tokens in asked]
    samples = await scraped(running)
    usages = [answer["usage"] for answer in answers]
    ends = [answer["choices"][0]["finish_reason"] for answer in answers]
    for outcome in ("stop", "length", "cancelled", "failed"):
        assert value(samples, "turns_total", outcome) == ends.count(outcome)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    assert value(samples, "cached_prompt_tokens_total") == cached
    assert value(samples, "prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert value(samples, "reply_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert value(samples, "time_to_first_token_seconds_count") == value(samples, "turn_seconds_count") == 3
    assert value(samples, "time_per_token_seconds_count") == 2
    rows = (await running.get("/ledger", kind="turn"))["rows"]
    first, whole = (sum(row["body"][key] for row in rows) / 1000 for key in ("first_token_ms", "total_ms"))
    assert value(samples, "time_to_first_token_seconds_sum") == pytest.approx(first)
    assert value(samples, "turn_seconds_sum") == pytest.approx(whole)
    per_token = sum(
        (row["body"]["total_ms"] - row["body"]["first_token_ms"]) / (row["body"]["reply_token_count"] - 1) / 1000
        for row in rows[1:]
    )
    assert value(samples, "time_per_token_seconds_sum") == pytest.approx(per_token)
    assert value(samples, "serving_seconds_total") >= value(samples, "turn_seconds_sum") * 0.9


async def test_lessons_are_counted_by_what_became_of_them(start: Start) -> None:
    async with start(slots=1) as running:
        await corrected(running)
        assert value(await scraped(running), "waiting_lessons") == 1
        await go_on(running)
        await corrected(running)
        await running.ask("something else", who=BOB)
        (refused,) = (await running.ask("another thing", learn={"wait": 60}))["learn"]["lessons"]
        samples = await scraped(running)
        (row,) = (await running.get("/ledger", kind="step"))["rows"]
        step = (await running.get(f"/ledger/{row['seq']}"))["step"]
    assert refused["refusal"]["code"] == "unserved_prefix"
    lessons = {key[1]: count for key, count in samples.items() if key[0] == "lessons_total"}
    assert lessons == {frozenset(("learned", "")): 1, frozenset(("refused", "unserved_prefix")): 1}
    assert value(samples, "learning_seconds_total") == pytest.approx(step["learning_ms"] / 1000)
    segments = {key[1]: count for key, count in samples.items() if key[0] == "lesson_segment_seconds_bucket"}
    assert value(samples, "lesson_segment_seconds_count") == segments[frozenset({"+Inf"})] > 4
    assert value(samples, "lesson_segment_seconds_sum") == pytest.approx(step["learning_ms"] / 1000)
    assert segments[frozenset({"0.001"})] < segments[frozenset({"2.5"})], "all went into one bucket"
    assert value(samples, "waiting_lessons") == 0


async def test_the_share_of_serving_that_a_lesson_took_is_told(start: Start) -> None:
    async with start(patience_seconds=0.0) as running:
        await corrected(running)
        beside = asyncio.create_task(running.ask("hello", who=BOB, **ENDLESS))

        async def one_is_served() -> bool:
            return value(await scraped(running), "slots", "serving") == 1

        await running.until(one_is_served)
        await go_on(running)
        await beside

        async def is_written() -> bool:
            return value(await scraped(running), "ledger_lag_seconds") == 0

        await running.until(is_written)
        samples = await scraped(running)
        (row,) = (await running.get("/ledger", kind="step"))["rows"]
        step = (await running.get(f"/ledger/{row['seq']}"))["step"]
    assert step["waited_ms"] > 0
    held_up, served = (value(samples, f"{name}_seconds_total") for name in ("learning_while_serving", "serving"))
    assert held_up == pytest.approx(step["waited_ms"] / 1000)
    assert value(samples, "learning_duty_ratio") == pytest.approx(held_up / served)


async def test_a_lesson_that_waits_too_long_is_counted_as_expired(start: Start) -> None:
    async with start(lesson_ttl_seconds=1e-6) as running:
        await corrected(running)
        await go_on(running)
        assert value(await scraped(running), "lessons_total", "refused", "expired") == 1


async def test_what_is_going_on_now(start: Start) -> None:
    async with start(slots=1) as running:
        turns = [asyncio.create_task(running.ask("hello", who=BOB, **ENDLESS)) for _ in range(2)]

        async def one_waits() -> bool:
            return value(await scraped(running), "queued_turns") == 1

        await running.until(one_waits)
        samples = await scraped(running)
        assert (value(samples, "slots", "serving"), value(samples, "slots", "idle")) == (1, 0)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)

        async def both_are_over() -> bool:
            return value(await scraped(running), "turns_total", "cancelled") == 2

        await running.until(both_are_over)
        samples = await scraped(running)
        assert (value(samples, "slots", "serving"), value(samples, "slots", "idle")) == (0, 1)
        assert value(samples, "queued_turns") == 0
        assert value(samples, "turn_seconds_count") == 1


async def test_the_ledgers_lag_is_the_age_of_what_is_not_written(running: Running) -> None:
    await running.ask()
    samples = await scraped(running)
    (newest,) = (await running.get("/ledger", newest="true", limit="1"))["rows"]
    assert (value(samples, "ledger_lag_seconds"), value(samples, "ledger_last_seq")) == (0, newest["seq"])
    free = threading.Event()
    blocked = asyncio.create_task(running.store.write(lambda _session: free.wait(20)))
    turn = asyncio.create_task(running.ask())

    async def lags() -> bool:
        return value(await scraped(running), "ledger_lag_seconds") > 0

    try:
        await running.until(lags)
    finally:
        free.set()
    await asyncio.gather(blocked, turn)
    assert value(await scraped(running), "ledger_lag_seconds") == 0


async def test_a_service_counts_its_own_and_says_what_it_is(start: Start) -> None:
    async with start() as running, start(data_dir=running.service._settings.data_dir / "other") as other:
        await running.ask()
        assert value(await scraped(running), "turn_seconds_count") == 1
        assert value(await scraped(other), "turn_seconds_count") == 0
        samples = await scraped(running, "application/openmetrics-text; version=1.0.0")
        assert value(samples, "turn_seconds_count") == 1
        assert value(samples, "model_info", "tiny-chat") == 1
        assert value(samples, "build_info", "0.1.0") == 1


def test_the_oldest_of_a_backlog_counts() -> None:
    now = 0.0
    backlog, first, second = Backlog(clock=lambda: now), object(), object()
    assert backlog.oldest_seconds() == 0
    backlog.enter(first)
    now = 2.0
    backlog.enter(second)
    assert backlog.oldest_seconds() == 2
    backlog.leave(first)
    now = 5.0
    assert backlog.oldest_seconds() == 3
    backlog.leave(second)
    assert backlog.oldest_seconds() == 0
