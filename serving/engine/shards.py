"""A scheduler for each data shard, and one that joins their plans.

Each shard has its own rows, pages and queue: attention on its devices reads its pages alone. A request is given to a
shard when it arrives, and stays there. The shards step together, since routed experts exchange tokens between them, so
their plans are joined into one: rows are renumbered, pages count within the shard of their row.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.engine.adapter_lease import AdapterLease
from serving.engine.block_pool import BlockPool
from serving.engine.constraint import Constraint
from serving.engine.limits import ExecutorLimits
from serving.engine.page_hash import page_digest, root_digest
from serving.engine.plan import StepPlan, StepResult
from serving.engine.policies.fairness import most_served
from serving.engine.prefix_pins import PinnedPrefix
from serving.engine.request import GenerateRequest, Pooling, TokenEvent
from serving.engine.scheduler import Scheduler, SchedulerStats
from serving.engine.sequence import Sequence as LiveSequence


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """What a shard has to offer a request."""

    streams: int  # that run or wait there
    cached: int  # pages of the prompt that its prefix cache has


def choose_shard(loads: Sequence[ShardLoad], slack: int) -> int:
    """The shard that has most of the prompt, among those with at most `slack` streams more than the one with the
    fewest; of equals the one with the fewest streams, then the first."""
    most = min(load.streams for load in loads) + slack
    fitting = [shard for shard, load in enumerate(loads) if load.streams <= most]
    return min(fitting, key=lambda shard: (-loads[shard].cached, loads[shard].streams, shard))


def cached_pages(
    request: GenerateRequest, pools: Sequence[BlockPool], adapter: AdapterLease | None = None
) -> list[int]:
    """How many leading pages of the request's tokens each pool has."""
    of_adapter = b"" if adapter is None else adapter.digest
    tokens = [*request.prompt_token_ids, *request.output_token_ids]
    size, digest = pools[0].page_size, root_digest(pools[0].namespace, request.cache_salt, of_adapter)
    found, searched = [0] * len(pools), [pool.prefix_caching for pool in pools]
    for index in range((len(tokens) - 1) // size):
        digest = page_digest(digest, tokens[index * size : (index + 1) * size])
        for shard, pool in enumerate(pools):
            searched[shard] = searched[shard] and pool.lookup(digest) is not None
            found[shard] += searched[shard]
        if not any(searched):
            break
    return found


@dataclass(frozen=True, slots=True)
class _Joined:
    """A plan in flight, and the plans that it was made of."""

    plan: StepPlan
    parts: list[tuple[int, StepPlan, list[int]]]  # shard, its plan, where its ranges are in the joined one


class ShardedScheduler:
    """What the loop and the engine ask of a Scheduler, over one a shard. `pools` are those of the schedulers."""

    def __init__(self, schedulers: Sequence[Scheduler], pools: Sequence[BlockPool], max_num_seqs: int) -> None:
        """`max_num_seqs` is that of one shard."""
        self._schedulers = schedulers
        self._pools = pools
        self._rows = max_num_seqs
        self._shard_of: dict[str, int] = {}  # of each live stream
        self._issued: deque[_Joined] = deque()
        self._steps = 0

    @property
    def has_requests(self) -> bool:
        return any(scheduler.has_requests for scheduler in self._schedulers)

    @property
    def num_in_flight(self) -> int:
        return len(self._issued)

    @property
    def speculation(self) -> str:
        return ""  # not with data shards

    @property
    def stats(self) -> SchedulerStats:
        """Sums over the shards, but for `steps`, which they take together."""
        every = [scheduler.stats for scheduler in self._schedulers]
        names = [field.name for field in dataclasses.fields(SchedulerStats) if field.name != "tenant_service"]
        summed = {name: sum(getattr(stats, name) for stats in every) for name in names}
        service = most_served(entry for stats in every for entry in stats.tenant_service)
        return SchedulerStats(**summed | {"steps": self._steps}, tenant_service=service)

    def add(
        self,
        request: GenerateRequest,
        now: float,
        constraint: Constraint | None = None,
        adapter: AdapterLease | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        """Raises as Scheduler.add does."""
        shard = self._shard_of.get(request.request_id)
        if shard is None:
            cached = cached_pages(request, self._pools, adapter)
            every = [scheduler.stats for scheduler in self._schedulers]
            loads = [
                ShardLoad(stats.running + stats.waiting, pages) for stats, pages in zip(every, cached, strict=True)
            ]
            shard = choose_shard(loads, slack=max(1, self._rows // 4))
        self._schedulers[shard].add(request, now, constraint, adapter, pooling)
        self._shard_of[request.request_id] = shard

    def abort(self, request_id: str, *, error: str | None = None) -> TokenEvent | None:
        shard = self._shard_of.pop(request_id, None)
        return None if shard is None else self._schedulers[shard].abort(request_id, error=error)

    def plan(self, now: float) -> StepPlan | None:
        plans = [(shard, plan) for shard, one in enumerate(self._schedulers) if (plan := one.plan(now)) is not None]
        if not plans:
            return None
        joined = join_plans(self._steps, plans, self._rows)
        self._steps += 1
        self._issued.append(joined)
        return joined.plan

    def expire(self, now: float) -> None:
        for scheduler in self._schedulers:
            scheduler.expire(now)

    def forget_pages(self, namespace: str) -> None:
        for scheduler in self._schedulers:
            scheduler.forget_pages(namespace)

    def tend(self) -> None:
        for scheduler in self._schedulers:
            scheduler.tend()

    def take_ended(self) -> list[TokenEvent]:
        ended = [event for scheduler in self._schedulers for event in scheduler.take_ended()]
        for event in ended:
            self._shard_of.pop(event.request_id, None)
        return ended

    def pin(
        self,
        name: str,
        token_ids: tuple[int, ...],
        *,
        salt: str,
        seconds: float,
        now: float,
        owner: str = "",
        most: int | None = None,
    ) -> PinnedPrefix:
        """In every shard, since a stream may run in any; what it says is of the shard that holds least."""
        asked = {"salt": salt, "seconds": seconds, "now": now, "owner": owner, "most": most}
        pinned = [one.pin(name, token_ids, **asked) for one in self._schedulers]
        return min(pinned, key=lambda prefix: prefix.held)

    def pinned(self, owner: str, now: float) -> list[PinnedPrefix]:
        """Likewise."""
        every = zip(*(scheduler.pinned(owner, now) for scheduler in self._schedulers), strict=True)
        return [min(shards, key=lambda prefix: prefix.held) for shards in every]

    def unpin(self, name: str, now: float, *, owner: str = "") -> bool:
        pinned = [scheduler.unpin(name, now, owner=owner) for scheduler in self._schedulers]
        return any(pinned)

    def commit(self, plan: StepPlan, result: StepResult, seconds: float | None = None) -> list[TokenEvent]:
        """Raises ValueError as Scheduler.commit does."""
        if not self._issued or self._issued[0].plan is not plan:
            raise ValueError(f"step {plan.step} is not the oldest one in flight")
        events: list[TokenEvent] = []
        for shard, part, places in self._issued.popleft().parts:
            of_shard = StepResult(ranges=tuple(result.ranges[i] for i in places))
            events += self._schedulers[shard].commit(part, of_shard, seconds)
        for event in events:
            if event.finish_reason is not None:
                self._shard_of.pop(event.request_id, None)
        return events

    def constrained(self) -> list[LiveSequence]:
        """The owners of the newest plan's constrained ranges, in its order."""
        newest = self._issued[-1]
        owners: dict[int, LiveSequence] = {}
        for shard, part, places in newest.parts:
            if part.constrained:
                of_shard = self._schedulers[shard].constrained()
                owners |= {places[i]: owner for i, owner in zip(part.constrained, of_shard, strict=True)}
        return [owners[i] for i in newest.plan.constrained]

    def check(self) -> None:
        """As Scheduler.check, of every shard."""
        for scheduler in self._schedulers:
            scheduler.check()


def scheduler_for(
    limits: ExecutorLimits, new_pool: Callable[[], BlockPool], new_scheduler: Callable[[BlockPool], Scheduler]
) -> Scheduler | ShardedScheduler:
    """One scheduler, or one for each data shard of an executor with these limits."""
    if limits.shards == 1:
        return new_scheduler(new_pool())
    pools = [new_pool() for _ in range(limits.shards)]
    return ShardedScheduler([new_scheduler(pool) for pool in pools], pools, limits.max_num_seqs)


def join_plans(step: int, plans: Sequence[tuple[int, StepPlan]], rows: int) -> _Joined:
    """One plan of those of some shards, which have so many rows each: all decodes first."""
    order = [(index, i) for index, (_, plan) in enumerate(plans) for i in range(plan.num_decode)]
    order += [(index, i) for index, (_, plan) in enumerate(plans) for i in range(plan.num_decode, len(plan.ranges))]
    places: list[list[int]] = [[0] * len(plan.ranges) for _, plan in plans]
    ranges, constrained = [], []
    for place, (index, i) in enumerate(order):
        shard, plan = plans[index]
        planned = plan.ranges[i]
        places[index][i] = place
        ranges.append(dataclasses.replace(planned, row=planned.row + shard * rows))
        if i in plan.constrained:
            constrained.append(place)
    joined = StepPlan(
        step=step,
        admissions=tuple(
            dataclasses.replace(admission, row=admission.row + shard * rows)
            for shard, plan in plans
            for admission in plan.admissions
        ),
        ranges=tuple(ranges),
        num_decode=sum(plan.num_decode for _, plan in plans),
        constrained=tuple(constrained),
    )
    return _Joined(joined, [(shard, plan, places[index]) for index, (shard, plan) in enumerate(plans)])
