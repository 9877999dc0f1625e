"""Tenants of one class are served by virtual token counter (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024): the next to be admitted is the first of the tenant with the least service per weight.

Service is counted in weighted tokens: a prompt token PROMPT_COST, one whose page was cached CACHED_COST, an output
token OUTPUT_COST, each divided by the tenant's weight. A tenant that comes back after a pause is lifted to the least
counter of those who wait, so that nobody saves up service by staying away.

The bound. Let two tenants f and g both have requests waiting throughout an interval. When f was last admitted,
c_f <= c_g held, because the least counter goes first and blocks the others until it fits. From then on c_f grows by the
prompt admitted then and by the output of those of its sequences that ran at that moment, of which there are at most as
many as rows. So with prompts of at most `prompt` tokens, outputs of at most `output`, and R rows,

    c_f - c_g <= U = (PROMPT_COST * prompt + OUTPUT_COST * R * output) / min(w_f, w_g)

at every moment, likewise with f and g exchanged, and the service per weight that the two got in the interval differs
by at most 2 U, however many requests either has sent (`service_bound`). The paper's theorem 4.4 is the same, with the
tokens that fit into memory in place of R * output.

Preemption changes nothing in that: who comes back is charged nothing again. An elder (`aging.py`) is admitted out of
turn, and adds what it is charged to its tenant's side, at most once in each aging period.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest

PROMPT_COST = 1.0
CACHED_COST = 0.1
OUTPUT_COST = 2.0  # as in the paper: an output token takes a step of its own
MOST_TENANTS_SHOWN = 16
MAX_ACCOUNTS = 4096  # of a class; beyond, those of tenants who have nothing to do are forgotten


@dataclass(slots=True, eq=False)
class Account:
    """One tenant's service in one class."""

    tenant: str = ""
    charged: float = 0.0  # weighted tokens over weight
    lifted: float = 0.0  # added on coming back
    live: int = 0  # sequences

    @property
    def counter(self) -> float:
        return self.charged + self.lifted


def prompt_charge(tokens: int, cached: int, weight: float) -> float:
    """For a prompt of `tokens`, `cached` of which were found in the cache."""
    return (PROMPT_COST * (tokens - cached) + CACHED_COST * cached) / weight


def output_charge(weight: float) -> float:
    """For one output token."""
    return OUTPUT_COST / weight


def service_bound(*, prompt: int, output: int, rows: int, least_weight: float = 1.0) -> float:
    """2 U of this module's text: the most by which the service per weight of two backlogged tenants differs."""
    return 2 * (PROMPT_COST * prompt + OUTPUT_COST * rows * output) / least_weight


class Ledger:
    """The accounts of one class."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._last: Account | None = None  # the last one that had a request admitted

    def account(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._forget()
            account = self._accounts[tenant] = Account(tenant)
        return account

    def come_back(self, account: Account, waiting: Iterable[Account]) -> None:
        """A tenant that had nothing waiting has now; `waiting` are the accounts of those who have."""
        floor = min((other.counter for other in waiting), default=self._last.counter if self._last else 0.0)
        account.lifted += max(floor - account.counter, 0.0)

    def leave(self, account: Account) -> None:
        """A request of the account's was admitted."""
        self._last = account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def _forget(self) -> None:
        """The lesser half of those without live sequences: they lose the least, being lifted when they come back."""
        idle = sorted((a for a in self._accounts.values() if not a.live), key=lambda account: account.counter)
        for account in idle[: len(idle) // 2 + 1]:
            del self._accounts[account.tenant]


def most_served(service: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Tenants and their service, over all classes, of the few who got most."""
    total: defaultdict[str, float] = defaultdict(float)
    for tenant, amount in service:
        total[tenant] += amount
    return tuple(nlargest(MOST_TENANTS_SHOWN, total.items(), key=lambda entry: entry[1]))
