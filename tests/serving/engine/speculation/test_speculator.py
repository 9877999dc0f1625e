"""Guesses where they pay, and none where they do not: a scheduler on a clock, whose steps take what they should."""

import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.engine.speculation.speculator import Speculator

BUCKETS = (1, 8, 16, 32, 64, 128)
USERS, OUTPUT, REQUESTS = 32, 160, 4  # rows; tokens of a stream; streams of a user
HOST = 0.2e-3  # seconds of a plan and its commit
TOKEN = 7  # all that is ever drawn

Cost = Callable[[int], float]  # seconds of a step by its padded tokens


def flat(bucket: int) -> float:
    """Weights read from memory, whatever the tokens: an accelerator with few streams."""
    return 5e-3 + 5e-6 * bucket


def steep(bucket: int) -> float:
    """Each token has its price: a device that is full."""
    return 0.5e-3 + 0.5e-3 * bucket


class Sometimes:
    """Guesses that are right as often as `rate` says."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate = rate
        self._random = random.Random(seed)

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        return tuple(TOKEN if self._random.random() < self._rate else TOKEN + 1 for _ in range(most))


def tokens_per_second(users: int, cost: Cost, rate: float | None, noise: float = 0.0) -> float:
    """`rate` None: without guesses. `noise`: of a step's time."""
    rng = random.Random(users)
    speculator = None
    if rate is not None:
        speculator = Speculator(
            most=4,
            most_tokens=2 * USERS,
            buckets=BUCKETS,
            lookup=lambda sequence: Sometimes(rate, sequence.arrival_number),
        )
    scheduler = Scheduler(
        max_model_len=1024,
        max_num_seqs=USERS,
        max_num_batched_tokens=BUCKETS[-1],
        max_waiting=1000,
        pool=BlockPool(USERS * 16, 16, prefix_caching=False),
        token_buckets=BUCKETS,
        decode_rounds=4,
        speculator=speculator,
    )
    sent, delivered, now, free_at = 0, 0, 0.0, 0.0
    in_flight: deque[tuple[StepPlan, float]] = deque()

    def send() -> None:
        nonlocal sent
        if sent < users * REQUESTS:
            sampling = SamplingParams(max_tokens=OUTPUT)
            scheduler.add(GenerateRequest(request_id=str(sent), prompt_token_ids=(1,) * 9, sampling=sampling), now)
            sent += 1

    for _ in range(users):
        send()
    while scheduler.has_requests or in_flight:
        plan = scheduler.plan(now)
        if plan is not None:
            now += HOST
            bucket = next(bucket for bucket in BUCKETS if bucket >= plan.num_tokens)
            free_at = max(free_at, now) + plan.rounds * cost(bucket) * (1 + rng.random() * noise)
            in_flight.append((plan, free_at))
        if len(in_flight) > (plan is not None):
            done, at = in_flight.popleft()
            now = max(now, at)
            for event in scheduler.commit(done, result_of(done)):
                delivered += len(event.token_ids)
                if event.finish_reason is not None:
                    send()
    return delivered / now


def result_of(plan: StepPlan) -> StepResult:
    results = []
    for r in plan.ranges:
        right = 0
        while right < r.guesses and r.token_ids[r.length - r.guesses + right] == TOKEN:
            right += 1
        following = (TOKEN,) * (right if r.guesses else plan.rounds - 1)
        results.append(RangeResult(token_id=TOKEN if r.samples else None, following=following if r.samples else ()))
    return StepResult(ranges=tuple(results))


@pytest.mark.parametrize(
    ("users", "rate", "least"), [(1, 0.9, 2.5), (8, 0.9, 2.4), (32, 0.9, 1.5), (8, 0.5, 1.3)], ids=str
)
def test_right_guesses_pay_where_tokens_cost_little(users: int, rate: float, least: float) -> None:
    assert tokens_per_second(users, flat, rate) > least * tokens_per_second(users, flat, None)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("users", [1, 8, 32])
@pytest.mark.parametrize("cost", [flat, steep])
def test_it_never_costs_more_than_three_percent(cost: Cost, users: int, rate: float, noise: float) -> None:
    ratio = tokens_per_second(users, cost, rate, noise) / tokens_per_second(users, cost, None, noise)
    assert ratio > 0.97
