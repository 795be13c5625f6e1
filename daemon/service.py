"""The service: opens everything in order, serves, and closes everything in the other order.

- It serves, and says so in the ready file, only once the model is loaded, what a crash left has been taken up,
  and the port is open.
- Every task has an owner that awaits it: if one fails, the service stops and says why.
- It stops in order: nothing new is taken, lessons go back to wait, open requests end or are cut off, what they
  left is recorded, the lane ends, the ledger is closed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from daemon.config import Settings
from daemon.dialects.every import dialect_handlers
from daemon.dialects.prompts import Prompts
from daemon.http import openapi
from daemon.http.connections import listening
from daemon.http.forget_route import ForgetRoute
from daemon.http.keys import Keys
from daemon.http.lane_state import LaneFacts, LaneState
from daemon.http.learn_route import LearnRoute
from daemon.http.ledger_routes import LedgerRoutes
from daemon.http.ledger_stream import LedgerFeed, LedgerStream
from daemon.http.lesson_routes import LessonRoutes
from daemon.http.limits import SignalRoom, TextLimit, TurnQueue
from daemon.http.lora_routes import LoraRoutes
from daemon.http.metrics import Metrics, MetricsRoute
from daemon.http.open_requests import OpenRequests
from daemon.http.page_routes import PageRoutes
from daemon.http.policy_routes import PolicyRoutes
from daemon.http.routes import Routes, application
from daemon.http.signal_routes import SignalRoutes
from daemon.http.summary_route import SummaryRoute
from daemon.learning.adapters import AgentAdapters
from daemon.learning.asked_lessons import AskedLessons
from daemon.learning.boarding import Boarding
from daemon.learning.checking import check_adapters
from daemon.learning.exports import sweep as sweep_exports
from daemon.learning.intake import Intake
from daemon.learning.learner import Learner
from daemon.learning.leasing import Leasing
from daemon.learning.live_forget import LiveForget
from daemon.learning.other_lanes import OtherLanes
from daemon.learning.planner import Planner
from daemon.learning.policies import Policies, begun_policy
from daemon.learning.precedence import Precedence
from daemon.learning.rides import Rides
from daemon.learning.settling import Settling
from daemon.learning.snapshots import Snapshots
from daemon.serving.lane_thread import LaneThread
from daemon.serving.loading import load_lane
from daemon.serving.lora_adapters import LoraAdapters
from daemon.serving.turns import Turns
from daemon.text.chat_template import HuggingFaceChat
from daemon.text.grammar import Grammars
from engine.lane import Lane
from engine.lora import AdapterShape
from engine.machine import MadeBy
from engine.orders import LessonEnded, LessonStarted
from engine.shadow import OptimizerSettings
from engine.weights import LoadedModel
from store.clock import now_us
from store.store import Store

logger = logging.getLogger(__name__)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is composed around a lane that is loaded."""

    snapshots: Snapshots
    learner: Learner
    boarding: Boarding
    intake: Intake
    turns: Turns
    asked: AskedLessons
    requests: OpenRequests
    feed: LedgerFeed
    leasing: Leasing
    others: OtherLanes
    forget: LiveForget
    app: web.Application


class Service:
    """One lane with its store. Made on the event loop that will run it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        say: Say,
        on_failure: Callable[[BaseException], None],
        hurry: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._keys = _keys(settings)
        self._policy = begun_policy(settings)
        self._store = store
        self._say = say
        self._hurry = hurry
        self._optimizer = OptimizerSettings(name=settings.optimizer, lr=settings.lr)
        self._model: LoadedModel | None = None
        self._parts: _Parts | None = None
        self._on_failure = on_failure
        self.lane = LaneThread(self._load, on_lesson=self._on_lesson, on_failure=on_failure)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve for as long as the block runs; gives the URL.

        Raises:
            SnapshotDamaged: an agent's adapters are damaged, or were made for another model or rank.
            OtherModel: another lane of the database serves another model.
        """
        started_at_us = now_us()
        await self.lane.start()
        try:
            parts = self._parts = await self._compose(started_at_us)
            await check_adapters(self._store, parts.snapshots)
            await asyncio.to_thread(sweep_exports, self._settings.exports)
            await parts.intake.recover()
            async with _owned(*map(self._watched, _tasks(parts))):
                parts.boarding.stir()
                async with listening(parts.app, self._settings) as url:
                    yield url
                    await _drain(parts)
                await parts.turns.settled()
                await parts.asked.settled()
                await parts.intake.settled()
                await self.lane.close()
                await parts.learner.settled()
                await parts.leasing.end()
        finally:
            await self.lane.close()

    async def _compose(self, started_at_us: int) -> _Parts:
        settings, store, lane, model = self._settings, self._store, self.lane, self._loaded()
        context_tokens = await lane.call(lambda own: own.engine.settings.context_tokens)
        chat, rides = HuggingFaceChat(model.tokenizer, model.end_tokens), Rides(lane)
        made_for = {"model": model.identity, "rank": str(settings.rank), "alpha": str(settings.alpha)}
        made_by = made_for | await lane.call(lambda own: MadeBy.of(own.engine).as_json())
        snapshots = Snapshots(settings.data_dir, made_for=made_for)
        exports, shape = settings.exports, AdapterShape(rank=settings.rank, alpha=settings.alpha)
        loras = LoraAdapters(lane, exports, shape)
        adapters = AgentAdapters(store, lane, snapshots, loras)
        metrics = Metrics(lane, rides, slots=settings.slots, model=model.name)
        learner = Learner(store, rides, adapters, snapshots, metrics, optimizer=self._optimizer, made_by=made_by)
        idle, ttl = settings.idle_seconds, settings.lesson_ttl_seconds
        boarding = Boarding(lane, rides, adapters, learner, idle_seconds=idle, ttl_seconds=ttl)
        policies = Policies(store, self._policy)
        await policies.load()
        precedence, room = Precedence(), SignalRoom(settings.max_signals)
        planner = Planner(chat, policies, precedence, context_tokens=context_tokens)
        settling = Settling(
            store, rides, adapters, learner, planner, policies=policies, started_at_us=started_at_us
        )
        leasing = Leasing(store, snapshots, policies, settings)
        intake = Intake(store, rides, adapters, chat, room, settling, leasing, precedence, policies=policies)
        leasing.on_taken, leasing.on_lost = intake.take_up, learner.give_up
        asked = AskedLessons(store, rides, intake, boarding, learner)
        turns = Turns(
            store,
            lane,
            adapters,
            rides,
            boarding,
            metrics,
            TurnQueue(lane, slots=settings.slots, queue=settings.queue),
            asked,
            policies,
            end_tokens=model.end_tokens,
            context_tokens=context_tokens,
        )
        routes = Routes(store, lane, learner, adapters, leasing, exports=exports, model=model.name)
        texts = TextLimit(context_tokens=context_tokens, longest_token_chars=chat.longest_token_chars)
        prompts = Prompts(chat, Grammars(model.tokenizer, model.end_tokens), texts)
        state = LaneState(lane, chat, LaneFacts(model.name, model.directory, settings.slots, context_tokens))
        others = [*state.routes(), *LoraRoutes(loras).routes(), *MetricsRoute(metrics, store).routes()]
        others += SignalRoutes(store, intake, boarding, policies, chat).routes()
        others += PolicyRoutes(policies, intake.weigh_anew).routes()
        others += LearnRoute(store, lane, prompts, asked, slots=settings.slots).routes()
        feed = LedgerFeed(store)
        others += SummaryRoute(store, metrics, duty=settings.duty).routes()
        others += [*LedgerStream(store, feed).routes(), *LedgerRoutes(store).routes()]
        forget = LiveForget(settings, store, adapters, learner, intake, leasing)
        others += ForgetRoute(forget).routes()
        others += [*LessonRoutes(store, policies, chat.token_texts).routes(), *PageRoutes().routes()]
        requests = OpenRequests(drain_seconds=settings.drain_seconds, hurry=self._hurry)
        endpoints = dialect_handlers(turns, prompts, model=model.name)
        app = application(routes, endpoints, others, settings=settings, keys=self._keys, requests=requests)
        app.add_routes([openapi.route(app)])
        others_write = OtherLanes(store, intake, adapters, policies, boarding)
        return _Parts(
            snapshots, learner, boarding, intake, turns, asked, requests, feed, leasing, others_write, forget, app
        )

    def _load(self) -> Lane:
        """Load the model; runs on the lane's thread."""
        self._model, lane = load_lane(self._settings, self._optimizer, self._say)
        return lane

    def _loaded(self) -> LoadedModel:
        assert self._model is not None, "the lane has not been started"
        return self._model

    def _on_lesson(self, event: LessonStarted | LessonEnded) -> None:
        assert self._parts is not None, "a lesson before anything could have ordered one"
        self._parts.learner.on_lesson(event)

    async def _watched(self, work: Coroutine[object, object, None]) -> None:
        """A task's border: what it raises stops the service."""
        try:
            await work
        except Exception as error:
            logger.exception("a task of the service failed")
            self._on_failure(error)


def _tasks(parts: _Parts) -> list[Coroutine[object, object, None]]:
    """What runs beside the serving."""
    others = [parts.leasing.keep(), parts.others.look(), parts.others.listen()]
    return [parts.learner.follow(), parts.boarding.fill_gaps(), *others]


async def _drain(parts: _Parts) -> None:
    """Take nothing new, and see what is open to its end."""
    parts.requests.refuse_new()
    parts.boarding.close()
    parts.feed.close()
    await parts.forget.close()
    await parts.requests.end()


def _keys(settings: Settings) -> Keys:
    own = settings.api_key
    return Keys.of(None if own is None else own.get_secret_value(), settings.api_key_file)


@asynccontextmanager
async def _owned(*work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run tasks for as long as the block does, and see each to its end."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
