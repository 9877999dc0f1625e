"""Ten thousand random lives of a scheduler, on a device that knows what every page must hold."""

import dataclasses
import random
from collections import deque
from collections.abc import Callable

import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.plan import StepPlan, StepResult
from serving.engine.request import FinishReason, GenerateRequest, Priority, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.speculation.prompt_lookup import PromptLookup
from serving.engine.speculation.speculator import Speculator
from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_tiers import PageTiers
from serving.errors import ContextLengthError, OverloadedError, RequestError
from tests.fakes.paged_device import VOCAB_SIZE, PagedDevice, Stream, expected_stream
from tests.fakes.paged_tiers import FakeMover

BLOCKS = 20
HISTORIES_PER_BLOCK = 500
COUNTED = (
    "preemptions",
    "hits",
    "aborts",
    "zombies",
    "losses",
    "refusals",
    "scored",
    "stopped",
    "deadlines",
    "pins",
    "repeated",
    "guessed",
    "accepted",
    "saved",
    "from_host",
    "from_disk",
    "damaged",
)


class _Client:
    """What one client has received, and what it should have."""

    def __init__(self, request: GenerateRequest, max_model_len: int) -> None:
        self.request = request
        self.expected: Stream = expected_stream(request, max_model_len)
        self.token_ids: list[int] = []
        self.num_events = 0  # since the engine was last lost
        self.finish_reason: FinishReason | None = None

    def receive(self, event: TokenEvent) -> None:
        assert self.finish_reason is None, "an event came after the last one"
        assert event.token_ids or event.finish_reason
        self.num_events += 1
        aborted = event.finish_reason in (FinishReason.ABORT, FinishReason.DEADLINE)
        first = self.num_events == 1
        if not aborted:
            assert (event.cached_tokens is not None) == (event.queue_seconds is not None) == first
            scores = self.expected.prompt_logprobs if first and not self.token_ids else ()
            assert event.prompt_logprobs == scores
        self.token_ids.extend(event.token_ids)
        count = len(self.token_ids)
        assert tuple(self.token_ids) == self.expected.token_ids[:count]
        assert len(event.logprobs) == (len(event.token_ids) if self.request.sampling.logprobs is not None else 0)
        self.finish_reason = event.finish_reason
        if event.finish_reason is None:
            assert count < len(self.expected.token_ids), "the stream should have ended with this token"
        elif not aborted:
            assert tuple(self.token_ids) == self.expected.token_ids
            assert event.finish_reason is self.expected.finish_reason
            assert event.stop_token_id == self.expected.stop_token_id

    def continuation(self) -> GenerateRequest:
        """The request that goes to the next engine when this one is lost."""
        self.num_events = 0
        return dataclasses.replace(self.request, output_token_ids=tuple(self.token_ids))


class _History:
    """One scheduler with clients that arrive, leave, and survive its loss."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.counts = dict.fromkeys(COUNTED, 0)
        self.page_size = rng.choice((1, 2, 3, 4))
        self.num_pages = rng.randint(3, 16)
        self.max_num_seqs = rng.randint(1, 5)
        self.budget = self.max_num_seqs + rng.choice((0, 1, 3, 8, 20))
        self.max_model_len = rng.randint(6, 28)
        self.max_waiting = rng.choice((2, 4, 20))
        self.max_share_waits = rng.choice((0, 1, 16, 16))
        self.prefix_caching = rng.random() < 0.9
        self.overlap = rng.choice((0.0, 1.0, 1.0, 0.5))  # chance that a plan is made before the last one is committed
        self.abort_rate = rng.choice((0.0, 0.02, 0.1))
        self.priorities = rng.choice(((Priority.STANDARD,), tuple(Priority), (Priority.INTERACTIVE, Priority.BATCH)))
        self.tenants = rng.choice((("",), ("a", "b"), ("a", "b", "c", "d")))
        self.deadline_rate = rng.choice((0.0, 0.0, 0.3))
        self.pin_rate = rng.choice((0.0, 0.0, 0.05))
        self.aging = rng.choice((0.04, 0.2, 30.0))  # seconds, of which a step takes 0.01
        self.target = rng.choice((None, None, 0.01))
        self.rounds = rng.choice((1, 1, 2, 4))
        self.burst = rng.choice((0.025, 1.0))
        self.guesses = rng.choice((0, 0, 1, 3))
        self.adapts = rng.random() < 0.3
        self.drafts = rng.random() < 0.5
        self.head = self.drafts and rng.random() < 0.5
        self.host_pages = rng.choice((0, 2, 6, 20))
        self.disk_pages = rng.choice((0, 3, 30)) if self.host_pages else 0
        self.batch = rng.choice((1, 2, 5))
        self.damage = rng.choice((0.0, 0.8))  # of a file
        self.longest = rng.choice((0, 1, 6))  # plans that a copy takes
        self.files: dict[bytes, tuple[int, ...]] = {}
        self.prefixes = [self._tokens(rng.randint(1, 14)) for _ in range(2)]
        self.clients: dict[str, _Client] = {}
        self.now = 0.0
        self._start_engine()

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 12)):
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                self._arrive()
            for _ in range(rng.randint(0, 4)):
                self._step()
            if rng.random() < 0.04:
                self._lose_engine()
        live = [client for client in self.clients.values() if client.finish_reason is None]
        # Each sequence alone would take a step for each position. Each may be preempted and computed again, by chunks
        # of at least a token, a few times before those ahead of it are through.
        # Each may wait for copies, of at least a page, of twice as many pages as it has.
        waits = 2 if self.tiers is None else 2 + 2 * (1 + self.longest)
        bound = 10 + waits * sum(len(c.request.prompt_token_ids) + len(c.expected.token_ids) for c in live) * (
            1 + len(live)
        )
        while self.scheduler.has_requests or self.in_flight:
            self._step()
            bound -= 1
            assert bound > 0, "somebody starves"
        self._end()

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCAB_SIZE) for _ in range(count))

    def _start_engine(self) -> None:
        self.device = PagedDevice(
            num_pages=self.num_pages,
            page_size=self.page_size,
            num_rows=self.max_num_seqs,
            max_tokens=self.budget,
            draft_is_head=self.head,
        )
        self.tiers = self._new_tiers() if self.host_pages else None
        self.scheduler = Scheduler(
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=self.max_waiting,
            max_share_waits=self.max_share_waits,
            vocab_size=VOCAB_SIZE,
            pool=BlockPool(self.num_pages, self.page_size, prefix_caching=self.prefix_caching, lower=self.tiers),
            target_inter_token=self.target,
            aging=self.aging,
            decode_rounds=self.rounds,
            burst_seconds=self.burst,
            speculator=self._speculator(),
            tiers=self.tiers,
        )
        self.in_flight: deque[StepPlan] = deque()
        self.on_device: deque[Callable[[], None] | StepPlan] = deque()  # in the order in which they were dispatched

    def _new_tiers(self) -> PageTiers:
        """With the files that the engine before it has left."""
        self.mover = FakeMover(
            self.device, self.rng, batch=self.batch, damage=self.damage, longest=self.longest, files=self.files
        )
        return PageTiers(
            self.mover,
            device_pages=self.num_pages,
            host_pages=self.host_pages,
            page_bytes=1,
            disk_pages=self.disk_pages,
            on_disk=[*self.files][-self.disk_pages :] if self.disk_pages else (),
        )

    def _speculator(self) -> Speculator | None:
        if not self.guesses:
            return None
        return Speculator(
            most=self.guesses,
            most_tokens=self.rng.randint(1, self.budget),
            buckets=tuple(range(1, self.budget + 1)),
            lookup=None if self.drafts else lambda sequence: PromptLookup(1, 3),
            adapts=self.adapts,
            head=self.head,
        )

    def _lose_engine(self) -> None:
        """The engine process is killed: clients that still listen continue elsewhere."""
        self._tally()
        self.max_waiting = max(self.max_waiting, len(self.clients))
        self._start_engine()
        for client in self.clients.values():
            if client.finish_reason is None:
                self.scheduler.add(client.continuation(), self.now)
        self.counts["losses"] += 1

    def _arrive(self) -> None:
        rng = self.rng
        prompt = self._tokens(rng.randint(0, 4))
        talked = [c for c in self.clients.values() if c.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
        if talked and rng.random() < 0.3:  # the next turn of a conversation
            earlier = rng.choice(talked)
            prompt = (*earlier.request.prompt_token_ids, *earlier.token_ids, *prompt)
        elif rng.random() < 0.7:
            prompt = (*rng.choice(self.prefixes), *prompt)
        scored = rng.random() < 0.1
        max_tokens = rng.randint(0 if scored else 1, 12)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=rng.choice((0, 0, min(3, max_tokens))),
            eos_token_ids=rng.choice(((), (0,), (0, 1))),
            stop_token_ids=rng.choice(((), (2,))),
            prompt_logprobs=1 if scored else None,
            logprobs=rng.choice((None, 0)),
        )
        client = _Client(
            GenerateRequest(
                request_id=f"stream-{len(self.clients)}",
                prompt_token_ids=prompt or (1,),
                sampling=sampling,
                priority=rng.choice(self.priorities),
                tenant=rng.choice(self.tenants),
                tenant_weight=rng.choice((1.0, 1.0, 4.0)),
                deadline_seconds=rng.uniform(0.005, 0.3) if rng.random() < self.deadline_rate else None,
            ),
            self.max_model_len,
        )
        try:
            self.scheduler.add(client.request, self.now)
        except ContextLengthError:
            positions = min(len(client.request.prompt_token_ids) + max_tokens, self.max_model_len) - (max_tokens > 0)
            too_long = len(client.request.prompt_token_ids) > self.max_model_len - (max_tokens > 0)
            assert too_long or positions > self.num_pages * self.page_size, "a request that fits was refused"
            self.counts["refusals"] += 1
        except OverloadedError:
            assert self.scheduler.stats.waiting >= self.max_waiting
            self.counts["refusals"] += 1
        else:
            self.clients[client.request.request_id] = client

    def _maybe_abort(self) -> None:
        if self.clients and self.rng.random() < self.abort_rate:
            client = self.rng.choice(list(self.clients.values()))
            event = self.scheduler.abort(client.request.request_id)
            assert (event is not None) == (client.finish_reason is None)
            if event is not None:
                client.receive(event)
                self.counts["aborts"] += 1

    def _maybe_pin(self) -> None:
        if self.rng.random() >= self.pin_rate:
            return
        seconds = self.rng.choice((0.05, 10.0))
        try:
            pinned = self.scheduler.pin(
                self.rng.choice("xy"), self.rng.choice(self.prefixes), salt="", seconds=seconds, now=self.now
            )
        except (RequestError, OverloadedError):
            assert self.scheduler.stats.pinned_pages <= self.num_pages
        else:
            self.counts["pins"] += pinned.pages

    def _step(self) -> None:
        self._maybe_abort()
        self._maybe_pin()
        self.now += 0.01
        plan = self.scheduler.plan(self.now)
        if plan is None and self.rng.random() < 0.5:  # an engine that asks again changes nothing
            plan = self.scheduler.plan(self.now)
        for event in self.scheduler.take_ended():
            client = self.clients[event.request_id]
            client.receive(event)
            assert client.request.deadline_seconds is not None
            self.counts["deadlines"] += 1
        if self.tiers is not None:
            self.tiers.run_moves()
            self.tiers.check()
            self.on_device.extend(self.mover.take_queued())
        if plan is not None:
            self.in_flight.append(plan)
            self.on_device.append(plan)
        busy = self.in_flight or self.scheduler.is_restoring
        assert busy or not self.scheduler.has_requests, "there is work, and none is planned"
        self.scheduler.check()
        self._maybe_abort()
        keep = 1 if plan is not None and self.rng.random() < self.overlap else 0
        while len(self.in_flight) > keep:
            self._commit()
        if not self.in_flight:
            self._move()

    def _move(self) -> None:
        """What was queued on the device before its next step."""
        while self.on_device and not isinstance(act := self.on_device[0], StepPlan):
            self.on_device.popleft()
            act()

    def _commit(self) -> None:
        self._move()
        plan = self.in_flight.popleft()
        assert self.on_device.popleft() is plan
        result: StepResult = self.device.run(plan)
        events = self.scheduler.commit(plan, result, self.rng.choice((0.002, 0.01, 0.02)))
        self.scheduler.check()
        named = [event.request_id for event in events]
        assert len(set(named)) == len(named), "a stream got two events from one step"
        drawn = plan.rounds * sum(r.samples for r in plan.ranges)
        self.counts["zombies"] += drawn - sum(len(e.token_ids) for e in events)
        self.counts["repeated"] += plan.rounds > 1
        self.counts["guessed"] += sum(r.guesses for r in plan.ranges)
        self.counts["accepted"] += sum(event.accepted_tokens for event in events)
        for event in events:
            self.clients[event.request_id].receive(event)

    def _end(self) -> None:
        for client in self.clients.values():
            assert client.finish_reason is not None, "a stream has no end"
            self.counts["scored"] += len(client.expected.prompt_logprobs) > 0
            self.counts["stopped"] += client.finish_reason is FinishReason.STOP
        for name in "xy":
            self.scheduler.unpin(name, self.now)
        self.scheduler.check()
        self._tally()
        stats = self.scheduler.stats
        assert (stats.running, stats.waiting, stats.used_pages) == (0, 0, 0)
        assert stats.free_pages == self.num_pages

    def _tally(self) -> None:
        stats = self.scheduler.stats
        self.counts["preemptions"] += stats.preemptions
        self.counts["hits"] += stats.prefix_cache_hits
        if self.tiers is not None:
            host, disk = self.tiers.counters[Tier.HOST], self.tiers.counters[Tier.DISK]
            self.counts["saved"] += host.pages_in
            self.counts["from_host"] += host.hit_tokens
            self.counts["from_disk"] += disk.hit_tokens
            self.counts["damaged"] += disk.damaged


@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_history_ends_every_stream_once_with_its_own_tokens_and_leaks_nothing(block: int) -> None:
    totals = dict.fromkeys(COUNTED, 0)
    for seed in range(block * HISTORIES_PER_BLOCK, (block + 1) * HISTORIES_PER_BLOCK):
        history = _History(seed)
        try:
            history.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        for name, count in history.counts.items():
            totals[name] += count
    assert min(totals.values()) > 0, f"the histories do not exercise everything: {totals}"
