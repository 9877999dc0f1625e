"""Who sends ten times as much gets no more of a full engine."""

import random

import pytest

from serving.engine.policies.fairness import (
    CACHED_COST,
    MAX_ACCOUNTS,
    OUTPUT_COST,
    PROMPT_COST,
    Account,
    Ledger,
    prompt_charge,
    service_bound,
)
from tests.fakes.paged_device import VOCAB_SIZE
from tests.serving.engine.driven_scheduler import DrivenScheduler

ROWS, PROMPT, OUTPUT = 3, 12, 10


def _crowd(weights: dict[str, float], requests: dict[str, int], seed: int = 0) -> DrivenScheduler:
    """Tenants that come at once, each with so many requests."""
    driven = DrivenScheduler(num_pages=64, max_num_seqs=ROWS, max_num_batched_tokens=16, max_waiting=2000)
    rng = random.Random(seed)
    for tenant, count in requests.items():
        for number in range(count):
            _ask(driven, rng, tenant, f"{tenant}-{number}", weights[tenant])
    return driven


def _ask(driven: DrivenScheduler, rng: random.Random, tenant: str, name: str, weight: float = 1.0) -> None:
    prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, PROMPT)))
    driven.add(name, prompt, max_tokens=rng.randint(1, OUTPUT), tenant=tenant, weight=weight)


def _service(driven: DrivenScheduler) -> dict[str, float]:
    """Per weight, as of the last plan but for what was committed since."""
    return dict(driven.scheduler.stats.tenant_service)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [{"many": 1.0, "few": 1.0}, {"many": 1.0, "few": 3.0}])
def test_the_service_of_two_who_wait_stays_within_the_bound(weights: dict[str, float], seed: int) -> None:
    driven = _crowd(weights, {"many": 600, "few": 60}, seed)
    bound = service_bound(prompt=PROMPT, output=OUTPUT, rows=ROWS, least_weight=min(weights.values()))
    service: dict[str, float] = {}
    while service.get("few", 0.0) < 2 * bound:  # long enough to have gone beyond it
        driven.step()
        assert all(_waiting(driven, tenant) for tenant in weights)
        service = _service(driven)
        assert abs(service.get("many", 0.0) - service.get("few", 0.0)) <= bound


def _waiting(driven: DrivenScheduler, tenant: str) -> bool:
    """Whether none of the last requests of a tenant has begun."""
    names = [name for name in driven.asked if name.startswith(tenant)]
    return not driven.events[names[-1]]


def test_nobody_saves_up_service_by_staying_away() -> None:
    driven = _crowd({"many": 1.0}, {"many": 300})
    for _ in range(300):
        driven.step()
    before = _service(driven)["many"]
    bound = service_bound(prompt=PROMPT, output=OUTPUT, rows=ROWS)
    assert before > 3 * bound
    rng = random.Random(1)
    for number in range(60):
        _ask(driven, rng, "late", f"late-{number}")
    while _waiting(driven, "late") and _waiting(driven, "many"):
        driven.step()
        service = _service(driven)
        assert service.get("late", 0.0) - (service["many"] - before) <= bound
    assert _service(driven)["late"] > bound


def test_cached_prompt_tokens_cost_a_tenth() -> None:
    assert prompt_charge(100, 60, 2.0) == pytest.approx((40 * PROMPT_COST + 60 * CACHED_COST) / 2)
    driven = DrivenScheduler(page_size=4)
    for turn in range(2):
        driven.add(str(turn), (1, 2, 3, 4, 5, 6, 7, 0, 1), max_tokens=1, tenant="t")
        driven.finish()
    driven.plan()
    assert _service(driven)["t"] == pytest.approx(9 + OUTPUT_COST + 1 + 8 * CACHED_COST + OUTPUT_COST)


def test_a_tenant_that_comes_back_is_lifted_to_the_least_of_those_who_wait_and_never_lowered() -> None:
    ledger = Ledger()
    low, high, back = (ledger.account(name) for name in ("low", "high", "back"))
    low.charged, high.charged = 50.0, 80.0
    ledger.come_back(back, [low, high])
    assert back.counter == 50.0
    ledger.come_back(high, [low, back])
    assert high.counter == 80.0


def test_where_nobody_waits_the_last_one_admitted_is_the_measure() -> None:
    ledger = Ledger()
    last, back = ledger.account("last"), ledger.account("back")
    last.charged = 70.0
    ledger.leave(last)
    ledger.come_back(back, [])
    assert back.counter == 70.0


def test_tenants_without_work_are_forgotten_before_the_books_grow_without_end() -> None:
    ledger = Ledger()
    busy = ledger.account("busy")
    busy.live = 1
    for number in range(3 * MAX_ACCOUNTS):
        ledger.account(str(number))
    accounts: list[Account] = list(ledger)
    assert len(accounts) <= MAX_ACCOUNTS
    assert busy in accounts
