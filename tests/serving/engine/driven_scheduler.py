"""A scheduler, the device that checks its plans, and what the streams received."""

from collections import defaultdict, deque
from typing import Any

from serving.engine.block_pool import BlockPool
from serving.engine.plan import Range, StepPlan
from serving.engine.request import FinishReason, GenerateRequest, Priority, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from tests.fakes.paged_device import VOCAB_SIZE, PagedDevice


class DrivenScheduler:
    """`plan` and `commit` by hand, or `step` for both in the order of an engine with (or without) a step in flight.
    Time passes a second a plan."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        overlap: bool = True,
        prefix_caching: bool = True,
        step_seconds: float | None = None,
        **limits: Any,
    ) -> None:
        self.scheduler = Scheduler(
            pool=BlockPool(num_pages, page_size, prefix_caching=prefix_caching),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            vocab_size=VOCAB_SIZE,
            **({"max_model_len": 64, "max_waiting": 64} | limits),
        )
        self.device = PagedDevice(
            num_pages=num_pages, page_size=page_size, num_rows=max_num_seqs, max_tokens=max_num_batched_tokens
        )
        self.overlap = overlap
        self.step_seconds = step_seconds  # what the device is said to take
        self.now = 0.0
        self.asked: list[str] = []
        self.in_flight: deque[StepPlan] = deque()
        self.events: defaultdict[str, list[TokenEvent]] = defaultdict(list)

    def add(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        *,
        output: tuple[int, ...] = (),
        salt: str = "",
        priority: Priority = Priority.STANDARD,
        tenant: str = "",
        weight: float = 1.0,
        deadline: float | None = None,
        **sampling: Any,
    ) -> GenerateRequest:
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            output_token_ids=output,
            cache_salt=salt,
            priority=priority,
            tenant=tenant,
            tenant_weight=weight,
            deadline_seconds=deadline,
            sampling=SamplingParams(**sampling),
        )
        self.scheduler.add(request, self.now)
        self.asked.append(request_id)
        return request

    def plan(self) -> StepPlan | None:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        self._receive(self.scheduler.take_ended())
        if plan is not None:
            self.in_flight.append(plan)
        return plan

    def commit(self) -> list[TokenEvent]:
        plan = self.in_flight.popleft()
        events = self.scheduler.commit(plan, self.device.run(plan), self.step_seconds)
        self.scheduler.check()
        self._receive(events)
        return events

    def step(self) -> StepPlan | None:
        if len(self.in_flight) > 1:  # planned by hand before
            self.commit()
        plan = self.plan()
        while len(self.in_flight) > (1 if self.overlap and plan is not None else 0):
            self.commit()
        return plan

    def finish(self, limit: int = 1000) -> None:
        """Steps until every stream has ended and nothing is in flight."""
        while self.scheduler.has_requests or self.in_flight:
            self.step()
            limit -= 1
            assert limit > 0, "the streams do not end"
        assert self.scheduler.stats.used_pages == 0

    def _receive(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.events[event.request_id].append(event)

    def reason(self, request_id: str) -> FinishReason | None:
        """Why a stream has ended; None where it has not."""
        events = self.events[request_id]
        return events[-1].finish_reason if events else None

    def tokens(self, request_id: str) -> tuple[int, ...]:
        return tuple(token_id for event in self.events[request_id] for token_id in event.token_ids)


def spans(plan: StepPlan | None) -> list[tuple[int, int]]:
    """(start, length) of each range."""
    return [(planned.start, planned.length) for planned in ranges(plan)]


def ranges(plan: StepPlan | None) -> tuple[Range, ...]:
    assert plan is not None
    return plan.ranges
