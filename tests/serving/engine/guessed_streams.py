"""Streams through the loop of an executor that guesses, step by step, and what it guessed."""

from collections.abc import Sequence
from typing import Any

from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.plan import StepPlan
from serving.engine.request import GenerateRequest, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.speculation.speculator import speculator_for
from serving.engine.verifier import PendingGuesses
from serving.settings.speculation import SpeculationConfig


class GuessedStreams:
    def __init__(self, executor: Executor, speculation: SpeculationConfig, *, pages: int | None = None) -> None:
        limits = executor.limits
        self.speculator = speculator_for(speculation, limits) if speculation.kind != "off" else None
        self.scheduler = Scheduler(
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.token_buckets[-1],
            max_waiting=100,
            pool=BlockPool(pages or limits.num_pages, limits.page_size),
            vocab_size=executor.vocab_size,
            token_buckets=limits.token_buckets,
            speculator=self.speculator,
        )
        self.pending: list[PendingGuesses] = []
        self.loop = EngineLoop(self.scheduler, _Watched(executor, self.pending), now=lambda: 0.0)

    def tokens(self, requests: Sequence[GenerateRequest]) -> dict[str, list[int]]:
        for one in requests:
            self.scheduler.add(one, 0.0, None)
        made: dict[str, list[TokenEvent]] = {one.request_id: [] for one in requests}
        while not self.loop.idle:
            for event in self.loop.step():
                made[event.request_id].append(event)
            self.scheduler.check()
        return {name: [token for event in events for token in event.token_ids] for name, events in made.items()}


class _Watched:
    """The executor, whose steps with guesses are kept."""

    def __init__(self, executor: Executor, pending: list[PendingGuesses]) -> None:
        self._executor, self._pending = executor, pending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def dispatch(self, plan: StepPlan) -> Any:
        step = self._executor.dispatch(plan)
        if isinstance(step, PendingGuesses):
            self._pending.append(step)
        return step
