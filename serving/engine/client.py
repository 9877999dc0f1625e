"""The Engine protocol: what everything above the engine sees of it.

One protocol with many bodies: in this process (`local.py`), behind a socket (`remote.py`), and wrappers such as the one
that continues streams over an engine restart (`resume.py`).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from serving.engine.operation import EngineState, Operation, OperationReport
from serving.engine.request import GenerateRequest, TokenEvent
from serving.engine.tiers.stats import TierStats


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts that do not change while the engine lives."""

    model_name: str
    vocab_size: int
    max_model_len: int  # tokens, prompt and output together
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int  # tokens
    num_pages: int
    programs_compiled: int
    startup_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot. Counters grow from the engine process's start."""

    started_at: float  # seconds since 1970: tells one engine process from the next, whose counters begin again
    ready: bool
    running: int  # streams with pages
    waiting: int  # streams without
    free_pages: int
    used_pages: int  # held by live streams; cached-but-idle pages count as free
    prefix_cache_queries: int  # counter, tokens
    prefix_cache_hits: int  # counter, tokens
    preemptions: int  # counter
    steps: int  # counter
    prompt_tokens: int  # counter, computed
    generation_tokens: int  # counter
    host_seconds: float  # counter: planning, packing, committing
    device_wait_seconds: float  # counter: blocked on the device
    fed_tokens: int = 0  # counter, generated tokens that a grammar left no choice for: fed and not drawn
    mask_seconds: float = 0.0  # counter: computing the masks of grammars
    masks: int = 0  # counter
    speculation: str = ""  # what guesses at tokens: the deployment's speculation.kind; "": nothing
    guessed_tokens: int = 0  # counter
    accepted_tokens: int = 0  # counter, those that were right
    grammar_queries: int = 0  # counter, streams that came with a grammar
    grammar_hits: int = 0  # counter, those whose grammar was known
    grammar_compile_seconds: float = 0.0  # counter, waiting included
    grammar_refusals: int = 0  # counter, grammars that could not be compiled
    waiting_interactive: int = 0
    waiting_standard: int = 0
    waiting_batch: int = 0
    pinned_pages: int = 0  # held, or waited for, by pinned prefixes
    deadline_drops: int = 0  # counter, streams whose deadline ended them before anything was computed
    deadline_stops: int = 0  # counter, those ended by it later
    state: EngineState = EngineState.RUNNING
    wakes_on_request: bool = False  # where it sleeps
    weights: str = ""  # their version; empty: not known
    tiers: tuple[TierStats, ...] = ()  # of the prefix cache, below the device
    tenant_service: tuple[tuple[str, float], ...] = ()  # of the few served most: weighted tokens over weight


class Engine(Protocol):
    """Token ids in, token ids out."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields events until one has a finish_reason. Closing the iterator early aborts the request before the
        engine's next plan.

        Raises RequestError where the request cannot be served by this engine, OverloadedError where the queue is full,
        EngineUnavailableError where the engine is lost before the end.
        """
        ...

    async def info(self) -> EngineInfo:
        """Raises EngineUnavailableError until the engine is ready."""
        ...

    async def stats(self) -> EngineStats:
        """Raises EngineUnavailableError where nobody answers."""
        ...

    async def operate(self, operation: Operation) -> OperationReport:
        """Does what an operator asks, between two steps.

        Raises RequestError where it cannot be done as asked, UnsupportedError where this engine does not do it,
        EngineUnavailableError where nobody answers.
        """
        ...

    async def close(self) -> None: ...
