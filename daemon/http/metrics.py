"""What is counted and timed, for Prometheus: `GET /metrics`.

- Facts are taken where they are at hand: a turn's when it is recorded, a lesson's when its end is. Nothing is
  measured for each token, and nothing is polled; what is true now is read when it is asked for.
- A service has a registry of its own.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.aiohttp import make_aiohttp_handler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daemon import __version__
from daemon.learning.rides import Rides
from daemon.serving.lane_thread import LaneThread
from daemon.serving.token_times import TokenTimes
from engine.orders import EndReason, LessonEnded, LessonStarted, TurnEnded
from engine.walk import LessonLearned
from store import ledger
from store.store import Store

Outcome = Literal["learned", "refused", "waiting", "failed"]
"""What became of a lesson: `waiting` goes back to wait, `failed` could not be recorded."""

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TURN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds of the histograms' buckets: from a tiny model's pace to a long prompt's on a slow machine."""


class Backlog:
    """Events that are to be written and are not yet, and since when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}

    def enter(self, event: object) -> None:
        """The event happened."""
        self._since[id(event)] = self._clock()

    def leave(self, event: object) -> None:
        """The event is written, or never will be."""
        self._since.pop(id(event), None)

    def oldest_seconds(self) -> float:
        """The age of the oldest; 0 when there is none."""
        return self._clock() - min(self._since.values()) if self._since else 0.0


@dataclass(frozen=True, slots=True)
class Now:
    """The lane at one moment; what adds up does so since the start. Milliseconds are None before any token."""

    slots: int
    serving_slots: int
    queued_turns: int
    waiting_lessons: int
    serving_seconds: float
    held_up_seconds: float
    learning_seconds: float
    ms_per_token: float | None
    ms_per_token_alone: float | None
    ms_per_token_beside_lessons: float | None
    ledger_lag_seconds: float

    @property
    def duty(self) -> float:
        """Learning's share of the serving time."""
        return self.held_up_seconds / self.serving_seconds if self.serving_seconds else 0.0


class Metrics:
    """One service's metrics."""

    def __init__(self, lane: LaneThread, rides: Rides, *, slots: int, model: str) -> None:
        self.registry = CollectorRegistry()
        self.backlog = Backlog()
        self._lane = lane
        self._rides = rides
        self._slots = slots
        self._held_up_seconds = 0.0
        self._learning_seconds = 0.0
        self._token_times = TokenTimes()
        self._turns = self._counter("turns", "Turns that ended, by how.", "outcome")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = self._counter("cached_prompt_tokens", "Tokens of prompts that were cached.")
        self._reply_tokens = self._counter("reply_tokens", "Tokens of replies.")
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From a turn's order to its first token.", _TURN_SECONDS
        )
        self._per_token = self._histogram(
            "time_per_token_seconds", "A turn's mean time for each token after its first.", _TOKEN_SECONDS
        )
        self._turn_seconds = self._histogram("turn_seconds", "From a turn's order to its end.", _TURN_SECONDS)
        self._lessons = self._counter("lessons", "Lessons that ended, by how and why.", "outcome", "code")
        self._segment = self._histogram(
            "lesson_segment_seconds", "Each segment of the lessons that were learned.", _TOKEN_SECONDS
        )
        self._learning = self._counter("learning_seconds", "Time that learned lessons took of the lane.")
        self._ledger = self._gauge("ledger_last_seq", "Number of the ledger's last row.")
        self.registry.register(_Now(self))
        self._info("build", {"version": __version__})
        self._info("model", {"name": model})
        for reason in get_args(EndReason):
            self._turns.labels(reason)
        self._lessons.labels("learned", "")

    def turn(self, ended: TurnEnded, *, prompt_tokens: int) -> None:
        """A turn ended; one that never had a slot was not served."""
        self._turns.labels(ended.reason).inc()
        if ended.slot is None:
            return
        self._turn_seconds.observe(ended.total_seconds)
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_tokens.inc(ended.cached_tokens)
        self._reply_tokens.inc(len(ended.reply_tokens))
        if ended.first_token_seconds is not None:
            self._first_token.observe(ended.first_token_seconds)
            if (more := len(ended.reply_tokens) - 1) > 0:
                seconds = ended.total_seconds - ended.first_token_seconds
                self._per_token.observe(seconds / more)
                self._token_times.turn_ended(seconds=seconds, tokens=more)

    def heard(self, event: LessonStarted | LessonEnded) -> None:
        """The lane told of a lesson; it is not on disk yet."""
        self.backlog.enter(event)
        if isinstance(event, LessonStarted):
            self._token_times.lesson_started(event.lesson)
            return
        self._token_times.lesson_ended(event.lesson)
        self._held_up_seconds += event.held_up_seconds

    def learned(self, lesson: LessonLearned) -> None:
        """A lesson's step is committed."""
        self.lesson("learned")
        self._learning.inc(lesson.learning_seconds)
        self._learning_seconds += lesson.learning_seconds
        for seconds in lesson.segment_seconds:
            self._segment.observe(seconds)

    def lesson(self, outcome: Outcome, code: str = "") -> None:
        """A lesson ended so."""
        self._lessons.labels(outcome, code).inc()

    def ledger_is_at(self, seq: int) -> None:
        """The ledger's last row has that number."""
        self._ledger.set(seq)

    def now(self) -> Now:
        """The lane as it is."""
        return Now(
            slots=self._slots,
            serving_slots=len(self._lane.turns_by_slot()),
            queued_turns=self._lane.queued_turns,
            waiting_lessons=len(self._rides.waiting()),
            serving_seconds=self._lane.serving_time.seconds,
            held_up_seconds=self._held_up_seconds,
            learning_seconds=self._learning_seconds,
            ms_per_token=self._token_times.ms,
            ms_per_token_alone=self._token_times.ms_alone,
            ms_per_token_beside_lessons=self._token_times.ms_beside_lessons,
            ledger_lag_seconds=self.backlog.oldest_seconds(),
        )

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(name, says, labels, namespace="ridealong", registry=self.registry)

    def _gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(name, says, labels, namespace="ridealong", registry=self.registry)

    def _histogram(self, name: str, says: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(name, says, namespace="ridealong", registry=self.registry, buckets=bounds)

    def _info(self, name: str, facts: dict[str, str]) -> None:
        Info(name, f"The {name}.", namespace="ridealong", registry=self.registry).info(facts)


class _Now(Collector):
    """What is true at the moment it is asked for."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Everything that is not counted."""
        now = self._metrics.now()
        yield _slots_by_state(now)
        yield _gauge("queued_turns", "Turns that wait for a slot.", now.queued_turns)
        yield _gauge("waiting_lessons", "Lessons that wait to ride.", now.waiting_lessons)
        yield _gauge("ledger_lag_seconds", "Age of the oldest event not yet written.", now.ledger_lag_seconds)
        yield _gauge("learning_duty_ratio", "Share of the serving time that lessons took.", now.duty)
        yield _total("serving_seconds", "Time that at least one turn was being served.", now.serving_seconds)
        yield _total("learning_while_serving_seconds", "Of it, the time that lessons took.", now.held_up_seconds)


class MetricsRoute:
    """Serves the metrics, in the format the scraper asks for."""

    def __init__(self, metrics: Metrics, store: Store) -> None:
        self._metrics = metrics
        self._store = store
        self._exposed = make_aiohttp_handler(metrics.registry)

    def routes(self) -> list[web.RouteDef]:
        """The route."""
        return [web.get("/metrics", self.handle)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Everything, as it is now."""
        newest = await self._store.read(ledger.page, limit=1, newest=True)
        self._metrics.ledger_is_at(newest.rows[0].seq if newest.rows else 0)
        return await self._exposed(request)


def _slots_by_state(now: Now) -> Metric:
    family = GaugeMetricFamily("ridealong_slots", "Slots, by what they do.", labels=["state"])
    family.add_metric(["serving"], now.serving_slots)
    family.add_metric(["idle"], now.slots - now.serving_slots)
    return family


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ridealong_{name}", says, value=value)


def _total(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(f"ridealong_{name}", says, value=value)
