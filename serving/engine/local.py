"""The Engine protocol in this process: the loop on a thread of its own, streams on the caller's event loop.

Requests and aborts reach the loop through an inbox that it empties before each plan. Events come back in one call per
step, however many streams there are. A second thread watches that no step hangs.
"""

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import numpy as np

from serving.config import Deployment
from serving.engine.adapter_lease import AdapterLease
from serving.engine.adapters import AdapterMemory, Adapters, no_adapters
from serving.engine.block_pool import BlockPool
from serving.engine.client import EngineInfo, EngineStats
from serving.engine.constraint import Constraint
from serving.engine.embedding import PooledEvent
from serving.engine.embedding_queue import EmbeddingQueue, TextEncoder
from serving.engine.engine import EngineLoop, SizedExecutor
from serving.engine.grammars import GrammarCounters, Grammars
from serving.engine.inbox import Abort, Question, Stream, call_soon
from serving.engine.intake import refuse_beside_grammar
from serving.engine.live_model import LiveModel, namespace_of
from serving.engine.model_embedder import ModelEmbedder
from serving.engine.operation import EngineState, Operation, OperationReport, Wake
from serving.engine.operations import perform
from serving.engine.recording import TraceFolder, end_trace, trace_folder
from serving.engine.request import FinishReason, GenerateRequest, Pooling, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.shards import ShardedScheduler, scheduler_for
from serving.engine.speculation.speculator import speculator_for
from serving.engine.text_model import TextModel
from serving.engine.tiers.page_tiers import PageTiers
from serving.engine.vocabulary import Vocabulary
from serving.engine.watchdog import StepWatchdog
from serving.errors import (
    EngineError,
    EngineUnavailableError,
    OverloadedError,
    RequestError,
    UnsupportedError,
    WeftError,
)
from serving.observability.logs import log_event

log = logging.getLogger(__name__)

T = TypeVar("T")

ASLEEP_RETRY_SECONDS = 30.0

_SHORTEST_SECONDS = 1e-3  # of a deadline that passes in this moment: the scheduler will say so
_LOOK_SECONDS = 0.5  # at the deadlines of streams that wait while no step begins


class LocalEngine:
    """Runs an EngineLoop on a daemon thread from construction until `close`.

    `on_failure` is called once, from a thread of the engine's, where the loop dies or a step exceeds the watchdog's
    limit. Streams have been ended by then.
    """

    def __init__(
        self,
        loop: EngineLoop,
        info: EngineInfo,
        watchdog: StepWatchdog,
        on_failure: Callable[[BaseException], None] | None = None,
        grammars: Grammars | None = None,
        encoder: TextEncoder | None = None,
        model: LiveModel | None = None,
        wake_on_request: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        """`grammars` None: requests that have one are refused; `encoder` None: there is no `embedder`; `model` None:
        the engine cannot sleep, nor take other weights."""
        self._loop = loop
        self.model = model
        self.trace_folder: TraceFolder | None = None  # set by whoever may let steps be recorded
        self._wake_on_request = wake_on_request
        self.adapters = adapters
        if adapters is not None:
            adapters.run_on(self.between_steps)
        self._grammars = grammars
        self._info = info
        self._watchdog = watchdog
        self._on_failure = on_failure
        self.embedder: EmbeddingQueue | None = None
        if encoder is not None:
            self.embedder = EmbeddingQueue(encoder, self.between_steps, is_generating=lambda: not loop.idle)
        self.model_embedder: ModelEmbedder | None = None  # set by whoever may let the model embed texts
        self._streams: dict[str, Stream] = {}  # touched by the thread alone
        self._inbox: deque[Stream | Abort | Question[Any]] = deque()
        self._arrived = threading.Event()
        if loop.tiers is not None:
            loop.tiers.call_on_news(self._arrived.set)
        self._closing = False
        self._failure: BaseException | None = None
        self._ended = threading.Event()  # the loop has ended, or hangs and is given up
        self._started_at = time.time()
        self._stats = self._snapshot()
        threading.Thread(target=self._run, name="engine-loop", daemon=True).start()
        threading.Thread(target=self._watch, name="engine-watchdog", daemon=True).start()

    async def info(self) -> EngineInfo:
        self._refuse_if_down()
        return self._info

    async def stats(self) -> EngineStats:
        self._refuse_if_down()
        return dataclasses.replace(self._stats, ready=not self._watchdog.overdue)

    async def close(self) -> None:
        self._closing = True
        self._arrived.set()
        await asyncio.to_thread(self._ended.wait)
        end_trace(self._loop, "the engine stopped")
        if self._grammars is not None:
            await asyncio.to_thread(self._grammars.close)
        if self._loop.tiers is not None:
            await asyncio.to_thread(self._loop.tiers.close)

    def post_mortem(self) -> dict[str, float | bool]:
        """Sizes, for a crash report: of the engine at its last step, and of the step that was planned last."""
        plan = self._loop.last_plan
        sizes = dataclasses.asdict(self._stats)
        if plan is not None:
            sizes |= {
                "step_tokens": plan.num_tokens,
                "step_ranges": len(plan.ranges),
                "step_decodes": plan.num_decode,
                "step_admissions": len(plan.admissions),
            }
        return sizes

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        self._refuse_if_down()
        begin = time.monotonic()
        await self._be_awake()
        lease, limit = None, asyncio.timeout(_left(request, begin))
        try:
            async with limit:
                constraint = await self._constraint(request)
                lease = await self._lease(request)
        except TimeoutError:
            if not limit.expired():
                raise
            yield TokenEvent(request_id=request.request_id, finish_reason=FinishReason.DEADLINE)
            return
        stream: Stream | None = None
        ended = False
        try:
            await self._be_awake()  # it may have been put to sleep meanwhile
            if request.deadline_seconds is not None:
                request = dataclasses.replace(request, deadline_seconds=_left(request, begin))
            stream = Stream(request, asyncio.get_running_loop(), constraint, lease)
            self._send(stream)
            while not ended:
                event = await stream.get()
                ended = event.finish_reason is not None
                yield event
        except WeftError:
            ended = True
            raise
        finally:
            if stream is not None and not ended:
                self._send(Abort(stream))
            if lease is not None and self.adapters is not None:  # after the abort, which is read before the next load
                self.adapters.release(lease)

    async def vector_of(self, request: GenerateRequest, pooling: Pooling) -> np.ndarray:
        """[D] float32, what the hidden states of a prompt become; its max_tokens is 0. Raises as `generate` does, and
        EngineError where the engine fails on it."""
        self._refuse_if_down()
        await self._be_awake()
        stream = Stream(request, asyncio.get_running_loop(), pooling=pooling)
        self._send(stream)
        try:
            event = await stream.get()  # there is one
        except asyncio.CancelledError:
            self._send(Abort(stream))
            raise
        if not isinstance(event, PooledEvent) or not np.isfinite(event.vector).all():
            raise EngineError(event.error or "the model gave no vector for a text", code="no_vector")
        return event.vector

    async def _lease(self, request: GenerateRequest) -> AdapterLease | None:
        """Of its adapter's slot; None where it has no adapter."""
        if not request.adapter:
            return None
        if self.adapters is None:
            raise no_adapters()
        return await self.adapters.lease(request.adapter)

    async def _be_awake(self) -> None:
        """Wakes an engine that sleeps, where requests may. No deadline ends a wake that others wait for too.

        Raises OverloadedError where it sleeps on: nobody has accepted the request, so no stream was lost with it."""
        if self._loop.state != EngineState.ASLEEP:
            return
        why = "the engine sleeps until it is woken"
        if self._wake_on_request:
            try:
                await self.operate(Wake())
                return
            except RequestError as error:
                if error.code == "engine_not_asleep":  # another request has woken it
                    return
                # Not told to clients: it names paths, and what the operator has to change.
                log_event(log, "the engine cannot wake", level=logging.ERROR, code=error.code, why=error.message)
                why = "the engine sleeps and cannot be woken by requests"
        raise OverloadedError(why, retry_after=ASLEEP_RETRY_SECONDS, code="engine_asleep")

    async def _constraint(self, request: GenerateRequest) -> Constraint | None:
        if request.grammar is None:
            return None
        if self._grammars is None:
            raise UnsupportedError("grammar is not supported: this engine knows no vocabulary", param="grammar")
        refuse_beside_grammar(request.sampling)
        return await self._grammars.constraint(request.grammar, request.output_token_ids)

    async def operate(self, operation: Operation) -> OperationReport:
        return await perform(operation, self)

    async def on_loop(self, work: Callable[[EngineLoop], T]) -> T:
        """Implements `LiveEngine`."""

        def counted() -> T:
            try:
                return work(self._loop)
            finally:
                self._stats = self._snapshot()  # first, so that whoever has the answer sees what it changed

        return await self.between_steps(counted)

    async def between_steps(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, run on the loop's thread, under its watchdog."""

        def watched(scheduler: Scheduler | ShardedScheduler, now: float) -> T:
            self._watchdog.begin()
            try:
                return work()
            finally:
                self._watchdog.end()

        return await self._ask(watched)

    async def _ask(self, ask: Callable[[Scheduler | ShardedScheduler, float], T]) -> T:
        self._refuse_if_down()
        loop = asyncio.get_running_loop()
        question = Question(ask, loop, loop.create_future())
        self._send(question)
        return await question.answer

    def _send(self, item: Stream | Abort | Question[Any]) -> None:
        self._inbox.append(item)
        self._arrived.set()
        if self._ended.is_set():  # while its grammar was compiled, say: nobody empties the inbox
            self._end_all()

    def _refuse_if_down(self) -> None:
        if self._failure is not None or self._closing:
            raise EngineUnavailableError("the engine has stopped", code="engine_stopped")

    def _run(self) -> None:
        try:
            while not self._closing and self._failure is None:
                self._empty_inbox()
                if self._loop.idle:
                    self._deliver(self._loop.expire())
                    self._loop.tend()
                    self._stats = self._snapshot()
                    self._arrived.wait(_LOOK_SECONDS if self._loop.scheduler.has_requests else None)
                    self._arrived.clear()
                    continue
                self._watchdog.begin()
                events = self._loop.step()
                self._watchdog.end()
                self._stats = self._snapshot()  # first, so that whoever has seen an end sees it counted
                self._deliver(events)
                if self._loop.stalled:
                    self._arrived.wait(_LOOK_SECONDS)
                    self._arrived.clear()
        except BaseException as error:
            # Whatever it is, the streams must end and the process that owns this engine must hear of it.
            log.exception("the engine loop failed")
            self._fail(error)
        finally:
            self._ended.set()
            self._end_all()  # after the flag: also what was sent in this moment, by one who did not see it

    def _watch(self) -> None:
        if self._watchdog.watch(self._ended):
            error = EngineError(f"a step has taken longer than {self._watchdog.limit_seconds:g} s", code="step_hangs")
            log.error(error.message)
            self._fail(error)
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:  # a step that hung, and failed after all
            return
        self._failure = error
        self._end_all()
        if self._on_failure is not None:
            self._on_failure(error)

    def _empty_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Abort):
                self._abort(item.stream)
                continue
            if isinstance(item, Question):
                self._answer(item)
                continue
            try:
                self._loop.scheduler.add(item.request, self._loop.now(), item.constraint, item.adapter, item.pooling)
            except WeftError as error:
                call_soon(item.loop, item.put, error)
            else:
                self._streams[item.request.request_id] = item

    def _abort(self, stream: Stream) -> None:
        """Nothing where it was refused or has ended: another may have its name."""
        request_id = stream.request.request_id
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._loop.scheduler.abort(request_id)

    def _answer(self, question: Question[Any]) -> None:
        try:
            result = question.ask(self._loop.scheduler, self._loop.now())
        except WeftError as error:
            result = error
        except BaseException:  # the loop ends, and nobody else would tell who asked
            error = EngineUnavailableError("the engine failed", code="engine_failed")
            call_soon(question.loop, question.put, error)
            raise
        call_soon(question.loop, question.put, result)

    def _deliver(self, events: list[TokenEvent]) -> None:
        """Hands each event loop everything this step made for its streams, in one call."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, TokenEvent]]] = {}
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            if event.finish_reason is not None:
                self._streams.pop(event.request_id, None)  # gone where the watchdog has given up on this step
            by_loop.setdefault(stream.loop, []).append((stream, event))
        for loop, batch in by_loop.items():
            call_soon(loop, _put_all, batch)

    def _end_all(self) -> None:
        """From any thread, and from several at once."""
        ending: list[Stream | Abort | Question[Any]] = [*self._streams.values()]
        self._streams.clear()
        with contextlib.suppress(IndexError):
            while True:
                ending.append(self._inbox.popleft())
        if self._failure is None:
            error = EngineUnavailableError("the engine has stopped", code="engine_stopped")
        else:
            error = EngineUnavailableError("the engine failed", code="engine_failed")
        for item in ending:
            if not isinstance(item, Abort):
                call_soon(item.loop, item.put, error)

    def _snapshot(self) -> EngineStats:
        scheduler = self._loop.scheduler.stats
        counters = GrammarCounters() if self._grammars is None else self._grammars.counters
        return EngineStats(
            started_at=self._started_at,
            ready=True,
            running=scheduler.running,
            waiting=scheduler.waiting,
            free_pages=scheduler.free_pages,
            used_pages=scheduler.used_pages,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            preemptions=scheduler.preemptions,
            steps=scheduler.steps,
            prompt_tokens=scheduler.prompt_tokens,
            generation_tokens=scheduler.generation_tokens,
            fed_tokens=scheduler.fed_tokens,
            waiting_interactive=scheduler.waiting_interactive,
            waiting_standard=scheduler.waiting_standard,
            waiting_batch=scheduler.waiting_batch,
            pinned_pages=scheduler.pinned_pages,
            deadline_drops=scheduler.deadline_drops,
            deadline_stops=scheduler.deadline_stops,
            tiers=() if self._loop.tiers is None else self._loop.tiers.stats(),
            tenant_service=scheduler.tenant_service,
            state=self._loop.state,
            wakes_on_request=self._wake_on_request,
            weights=self._loop.weights,
            host_seconds=self._loop.clock.host,
            device_wait_seconds=self._loop.clock.device_wait,
            mask_seconds=self._loop.masks.seconds,
            masks=self._loop.masks.computed,
            speculation=self._loop.scheduler.speculation,
            guessed_tokens=scheduler.guessed_tokens,
            accepted_tokens=scheduler.accepted_tokens,
            grammar_queries=counters.asked,
            grammar_hits=counters.cache_hits,
            grammar_compile_seconds=counters.compile_seconds,
            grammar_refusals=counters.refused,
        )


def start_local_engine(
    deployment: Deployment,
    executor: SizedExecutor,
    startup_seconds: float,
    on_failure: Callable[[BaseException], None] | None = None,
    watchdog: StepWatchdog | None = None,
    vocabulary: Callable[[], Vocabulary] | None = None,
    encoder: TextEncoder | None = None,
    model: LiveModel | None = None,
    version: str = "",
    stacks: AdapterMemory | None = None,
    tiers: PageTiers | None = None,
    text_model: TextModel | None = None,
) -> LocalEngine:
    """A scheduler and a loop around an executor, running. `watchdog` None: one with the deployment's limit;
    `vocabulary` None: no request may have a grammar; `version` is that of the weights, where it is known;
    `stacks` None: there are no adapters; `tiers` None: pages that the device gives up are lost; `text_model` None: the
    model embeds nothing."""
    limits, engine = executor.limits, deployment.engine
    namespace = namespace_of(deployment.name, version)

    def pool() -> BlockPool:
        return BlockPool(
            limits.num_pages,
            limits.page_size,
            namespace=namespace,
            prefix_caching=engine.prefix_caching,
            lower=tiers,
        )

    def scheduler(pool: BlockPool) -> Scheduler:
        return Scheduler(
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.token_buckets[-1],
            max_waiting=-(-engine.max_waiting // limits.shards),
            pool=pool,
            vocab_size=executor.vocab_size,
            token_buckets=limits.token_buckets,
            target_inter_token=None if engine.target_inter_token_ms is None else engine.target_inter_token_ms / 1000,
            aging=engine.aging_seconds,
            decode_rounds=limits.decode_rounds if limits.shards == 1 else 1,
            speculator=speculator_for(deployment.speculation, limits),
            tiers=tiers,
        )

    info = EngineInfo(
        model_name=deployment.name,
        vocab_size=executor.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.shards * limits.max_num_seqs,
        max_num_batched_tokens=limits.shards * limits.token_buckets[-1],
        page_size=limits.page_size,
        num_pages=limits.shards * limits.num_pages,
        programs_compiled=executor.programs_compiled,
        startup_seconds=startup_seconds,
    )
    watchdog = watchdog or StepWatchdog(engine.step_timeout_seconds)
    grammars = None if vocabulary is None else Grammars(vocabulary, executor.vocab_size)
    loop = EngineLoop(scheduler_for(limits, pool, scheduler), executor, tiers=tiers)
    loop.weights, loop.namespace = version, namespace
    wakes = deployment.operations.wake_on_request
    held = None
    if stacks is not None:
        held = Adapters(stacks, deployment.adapters.named, engine.max_waiting, deployment.adapters.folder)
    made = LocalEngine(loop, info, watchdog, on_failure, grammars, encoder, model, wakes, held)
    made.trace_folder = trace_folder(deployment, limits)
    if text_model is not None:
        at_once = max(1, min(2 * info.max_num_seqs, engine.max_waiting // 2))
        made.model_embedder = ModelEmbedder(made.vector_of, text_model, at_once)
    return made


def _put_all(batch: list[tuple[Stream, TokenEvent]]) -> None:
    for stream, event in batch:
        stream.put(event)


def _left(request: GenerateRequest, begin: float) -> float | None:
    """Seconds of its deadline, for a request that came at `begin`; None: it has none."""
    limit = request.deadline_seconds
    return None if limit is None else max(limit - (time.monotonic() - begin), _SHORTEST_SECONDS)
