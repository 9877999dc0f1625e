"""An engine whose tokens are a function of (prompt, seed, position), as a real one's are, and which can be killed."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from serving.engine.client import EngineInfo, EngineStats
from serving.engine.operation import EngineState, Operation, OperationReport
from serving.engine.request import FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from serving.errors import EngineUnavailableError

VOCAB_SIZE = 50


def token_at(request: GenerateRequest, position: int) -> int:
    """The token at one output position."""
    return random.Random(f"{request.prompt_token_ids} {request.sampling.seed} {position}").randrange(VOCAB_SIZE)


@dataclass
class MortalEngine:
    """`life` is how many events it yields, over all streams, before it dies; None: it lives until `kill`."""

    max_model_len: int = 4096
    life: int | None = None
    chunk: Callable[[], int] = lambda: 1  # tokens of the next event
    pause: asyncio.Event | None = None  # streams wait for it before each event
    events_to_pause: int | None = None  # over all streams; then it clears `pause` itself
    alive: bool = True
    requests: list[GenerateRequest] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever a stream opens or closes
    _death: asyncio.Event = field(default_factory=asyncio.Event)

    def kill(self) -> None:
        self.alive = False
        self._death.set()

    def revive(self, life: int | None = None) -> None:
        self.life = life
        self.alive = True
        self._death = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        if not self.alive:
            raise EngineUnavailableError("the engine is down", code="engine_unavailable")
        self.requests.append(request)
        self.open.add(request.request_id)
        self.changed.set()
        try:
            death = self._death
            position = len(request.output_token_ids)
            first = True
            while True:
                await self._turn(death)
                event = self._event(request, position, first)
                position += len(event.token_ids)
                first = False
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self.open.discard(request.request_id)
            self.changed.set()

    async def _turn(self, death: asyncio.Event) -> None:
        if self.life is not None:
            self.life -= 1
            if self.life < 0:
                self.kill()
        if self.pause is not None and not death.is_set():
            waits = [asyncio.ensure_future(self.pause.wait()), asyncio.ensure_future(death.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if self.events_to_pause is not None:
                self.events_to_pause -= 1
                if self.events_to_pause == 0:
                    self.pause.clear()
        if death.is_set():
            raise EngineUnavailableError("the engine died", code="engine_lost")
        await asyncio.sleep(0)

    def _event(self, request: GenerateRequest, position: int, first: bool) -> TokenEvent:
        sampling = request.sampling
        tokens: list[int] = []
        finish, stop = (None, None) if sampling.max_tokens else (FinishReason.LENGTH, None)
        for _ in range(self.chunk() if sampling.max_tokens else 0):
            token = token_at(request, position + len(tokens))
            tokens.append(token)
            count = position + len(tokens)
            if count > sampling.min_tokens and token in sampling.stop_token_ids:
                finish, stop = FinishReason.STOP, token
            elif count > sampling.min_tokens and token in sampling.eos_token_ids:
                finish = FinishReason.STOP
            elif count >= sampling.max_tokens or len(request.prompt_token_ids) + count >= self.max_model_len:
                finish = FinishReason.LENGTH
            if finish is not None:
                break
        return TokenEvent(
            request_id=request.request_id,
            token_ids=tuple(tokens),
            logprobs=tuple(map(_logprob, tokens)) if sampling.logprobs is not None else (),
            prompt_logprobs=tuple(map(_logprob, request.prompt_token_ids[1:]))
            if first and sampling.prompt_logprobs is not None
            else (),
            finish_reason=finish,
            stop_token_id=stop,
            cached_tokens=0 if first else None,
            queue_seconds=0.0 if first else None,
        )

    async def info(self) -> EngineInfo:
        if not self.alive:
            raise EngineUnavailableError("the engine is down", code="engine_unavailable")
        return EngineInfo(
            model_name="mortal",
            vocab_size=VOCAB_SIZE,
            max_model_len=self.max_model_len,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            page_size=16,
            num_pages=64,
            programs_compiled=0,
            startup_seconds=0.0,
        )

    async def stats(self) -> EngineStats:
        if not self.alive:
            raise EngineUnavailableError("the engine is down", code="engine_unavailable")
        return EngineStats(
            started_at=1_700_000_000.0,
            ready=True,
            running=len(self.open),
            waiting=0,
            free_pages=64,
            used_pages=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            preemptions=0,
            steps=0,
            prompt_tokens=0,
            generation_tokens=0,
            host_seconds=0.0,
            device_wait_seconds=0.0,
        )

    async def operate(self, operation: Operation) -> OperationReport:
        if not self.alive:
            raise EngineUnavailableError("the engine is down", code="engine_unavailable")
        return OperationReport(state=EngineState.RUNNING)

    async def close(self) -> None:
        self.kill()


def _logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(token_id=token, logprob=-token / 100, rank=1)
