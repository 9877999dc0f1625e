"""Fairness between tenants and classes: `python -m scripts.bench_fairness`.

The scheduler is the real one; the device is a clock. A step of b tokens, padded to a power of two, takes 4 ms and
20 us a token, about what a model of a few billion parameters takes on one accelerator. Same seed, same figures: nothing
here depends on the machine that runs it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scripts.flags import flags_of
from serving.engine.block_pool import BlockPool
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.policies.fairness import OUTPUT_COST, PROMPT_COST, service_bound
from serving.engine.request import GenerateRequest, Priority, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.engine.step_cost import buckets_up_to

ROWS = 32
BUDGET = 512
LONGEST_PROMPT, LONGEST_OUTPUT = 512, 128
STEP_SECONDS, TOKEN_SECONDS = 4e-3, 20e-6


@dataclass
class Client:
    """Keeps `streams` requests of one tenant and class open, from `starts` on."""

    tenant: str
    streams: int
    priority: Priority = Priority.STANDARD
    starts: float = 0.0
    shortest_prompt: int = 16
    sent: int = 0


@dataclass
class Seen:
    """What the clients saw, by tenant."""

    service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    first_token: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gaps: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Simulation:
    """`blind`: the scheduler is not told of tenants and classes."""

    def __init__(self, clients: list[Client], *, blind: bool = False, target: float | None = None) -> None:
        self._clients = clients
        self._blind = blind
        self._rng = random.Random(7)
        self._now = 0.0
        self._scheduler = Scheduler(
            max_model_len=1024,
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            max_waiting=10_000,
            pool=BlockPool(ROWS * 64, 16),
            token_buckets=buckets_up_to(BUDGET),
            target_inter_token=target,
        )
        self._owner: dict[str, tuple[Client, GenerateRequest, float]] = {}
        self._last: dict[str, float] = {}
        self.seen = Seen()

    def run(self, seconds: float) -> Seen:
        while self._now < seconds:
            for client in self._clients:
                live = sum(owner is client for owner, _, _ in self._owner.values())
                for _ in range(client.streams - live if self._now >= client.starts else 0):
                    self._send(client)
            plan = self._scheduler.plan(self._now)
            if plan is None:
                self._now += STEP_SECONDS
                continue
            took = STEP_SECONDS + TOKEN_SECONDS * next(b for b in buckets_up_to(BUDGET) if b >= plan.num_tokens)
            self._now += took
            self._commit(plan, took)
        return self.seen

    def _send(self, client: Client) -> None:
        rng, client.sent = self._rng, client.sent + 1
        length = rng.randint(client.shortest_prompt, LONGEST_PROMPT)
        request = GenerateRequest(
            request_id=f"{client.tenant}-{client.sent}",
            prompt_token_ids=tuple(rng.randrange(30_000) for _ in range(length)),
            sampling=SamplingParams(max_tokens=rng.randint(16, LONGEST_OUTPUT)),
            priority=Priority.STANDARD if self._blind else client.priority,
            tenant="" if self._blind else client.tenant,
        )
        self._scheduler.add(request, self._now)
        self._owner[request.request_id] = client, request, self._now

    def _commit(self, plan: StepPlan, took: float) -> None:
        result = StepResult(
            ranges=tuple(RangeResult(token_id=5 if planned.samples else None) for planned in plan.ranges)
        )
        for event in self._scheduler.commit(plan, result, took):
            client, request, arrival = self._owner[event.request_id]
            tenant, before = client.tenant, self._last.get(event.request_id)
            if before is None:
                self.seen.service[tenant] += PROMPT_COST * len(request.prompt_token_ids)
                self.seen.first_token[tenant].append(self._now - arrival)
            else:
                self.seen.gaps[tenant].append(self._now - before)
            self.seen.service[tenant] += OUTPUT_COST
            self._last[event.request_id] = self._now
            if event.finish_reason is not None:
                del self._owner[event.request_id], self._last[event.request_id]


def jain(shares: Iterable[float]) -> float:
    """Jain's index: 1 where all shares are equal, 1/n where one has all (Jain, Chiu and Hawe, 1984)."""
    shares = list(shares)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)]


def two_tenants() -> None:
    seconds = 120.0
    print(f"two tenants, one with ten times as many requests open, {seconds:g} s:")
    for title, few in (("both want more than half", 40), ("one wants less than half", 8)):
        for policy, blind in (("by arrival", True), ("by tenant", False)):
            seen = Simulation([Client("many", 10 * few), Client("few", few)], blind=blind).run(seconds)
            service, wait = seen.service, seen.first_token["few"]
            print(
                f"  {title}, {policy:10}: service few {service['few']:8.0f}  many {service['many']:8.0f}"
                f"  Jain {jain(service.values()):.3f}  first token of few: median {percentile(wait, 50):6.2f} s"
                f"  p99 {percentile(wait, 99):6.2f} s"
            )
    bound = service_bound(prompt=LONGEST_PROMPT, output=LONGEST_OUTPUT, rows=ROWS)
    print(f"  the bound on the difference between two who wait: {bound:.0f} weighted tokens, for any length of time")


def classes() -> None:
    seconds, target = 60.0, 8e-3
    people = [Client("people", 8, Priority.INTERACTIVE)]
    batch = Client("batch", 200, Priority.BATCH, shortest_prompt=256)
    print(f"8 interactive streams, alone and beside batch work that takes all that is left, {seconds:g} s:")
    alone: dict[float | None, float] = {}
    for aim in (None, target):
        for title, clients, blind in (
            ("alone", people, False),
            ("batch as one of them", [*people, batch], True),
            ("batch as a class", [*people, batch], False),
        ):
            for client in clients:
                client.sent = 0
            seen = Simulation(clients, blind=blind, target=aim).run(seconds)
            p99 = percentile(seen.gaps["people"], 99)
            alone.setdefault(aim, p99)
            print(
                f"  target {'off ' if aim is None else f'{aim * 1e3:g} ms'}  {title:21}"
                f" between tokens: median {percentile(seen.gaps['people'], 50) * 1e3:5.2f} ms"
                f"  p99 {p99 * 1e3:5.2f} ms ({p99 / alone[aim]:.2f} of alone)"
                f"  first token p99 {percentile(seen.first_token['people'], 99) * 1e3:7.1f} ms"
                f"  batch service {seen.service['batch'] / seconds:6.0f} a second"
            )


def main() -> None:
    flags_of(__doc__).parse_args()
    two_tenants()
    classes()


if __name__ == "__main__":
    main()
