"""An engine without a model: it emits the tokens that a test wrote down, in the chunks that the test chose."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from serving.engine.adapter_lease import AdapterState
from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.client import EngineInfo, EngineStats
from serving.engine.operation import EngineState, Operation, OperationReport, Pause
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.engine.prefix_pins import PinnedPrefix
from serving.engine.request import FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from serving.errors import NotFoundError

PAGE_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Script:
    """One stream. It ends with `finish` after the last token, or earlier: at an EOS, a stop token or max_tokens."""

    token_ids: Sequence[int]
    chunk: int = 1  # tokens per event
    finish: FinishReason = FinishReason.LENGTH
    hold_after: int | None = None  # waits, for ever, once so many tokens are out: until the stream is closed
    error: str | None = None  # with FinishReason.ERROR
    raises: Exception | None = None  # instead of the first event
    cached_tokens: int = 0
    weights: tuple[str, str] | None = None  # that drew the first event, and the last one


@dataclass
class ScriptedEngine:
    """`scripts` are used in turn, the last one again and again; or `script_for` chooses by the request.

    `requests` are all that came; `closed` the request ids whose iterator was closed before its end.
    """

    scripts: Sequence[Script] = ()
    script_for: Callable[[GenerateRequest], Script] | None = None
    vocab_size: int = 1 << 30
    max_model_len: int = 4096
    model_name: str = "scripted"
    requests: list[GenerateRequest] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    adapters: dict[str, AdapterState] = field(default_factory=dict)
    pins: dict[str, dict[str, PinnedPrefix]] = field(default_factory=dict)  # by owner and name

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        script = self._script(request)
        self.requests.append(request)
        if script.raises is not None:
            raise script.raises
        ended = False
        try:
            for event in _events(request, script):
                await asyncio.sleep(0)  # other tasks run between two steps, as with a real engine
                if event is None:
                    await asyncio.Event().wait()
                else:
                    ended = event.finish_reason is not None
                    yield event
        finally:
            (self.finished if ended else self.closed).append(request.request_id)

    async def info(self) -> EngineInfo:
        return EngineInfo(
            model_name=self.model_name,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            max_num_seqs=8,
            max_num_batched_tokens=512,
            page_size=PAGE_SIZE,
            num_pages=1024,
            programs_compiled=0,
            startup_seconds=0.0,
        )

    async def stats(self) -> EngineStats:
        return EngineStats(
            started_at=1_700_000_000.0,
            ready=True,
            running=len(self.requests) - len(self.closed) - len(self.finished),
            waiting=0,
            free_pages=1024,
            used_pages=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            preemptions=0,
            steps=0,
            prompt_tokens=sum(len(request.prompt_token_ids) for request in self.requests),
            generation_tokens=0,
            host_seconds=0.0,
            device_wait_seconds=0.0,
        )

    async def operate(self, operation: Operation) -> OperationReport:
        self.operations.append(operation)
        if isinstance(operation, LoadAdapter | UnloadAdapter | PinAdapter | ListAdapters):
            return OperationReport(state=EngineState.RUNNING, adapters=self._adapted(operation))
        if isinstance(operation, PinPrefix | UnpinPrefix | ListPins):
            return OperationReport(state=EngineState.RUNNING, pins=self._pinned(operation))
        return OperationReport(state=EngineState.PAUSED if isinstance(operation, Pause) else EngineState.RUNNING)

    async def close(self) -> None:
        pass

    def _adapted(self, operation: LoadAdapter | UnloadAdapter | PinAdapter | ListAdapters) -> tuple[AdapterState, ...]:
        match operation:
            case LoadAdapter(name=name) | PinAdapter(name=name):
                pinned = isinstance(operation, PinAdapter) and operation.pinned
                self.adapters[name] = AdapterState(name=name, slot=None, pinned=pinned, streams=0)
            case UnloadAdapter(name=name):
                if self.adapters.pop(name, None) is None:
                    raise NotFoundError("there is no such adapter", code="model_not_found")
        return tuple(self.adapters.values())

    def _pinned(self, operation: PinPrefix | UnpinPrefix | ListPins) -> tuple[PinnedPrefix, ...]:
        """The pins that it speaks of, with pages as large as `info` says and none of them held."""
        mine = self.pins.setdefault(operation.owner, {})
        match operation:
            case PinPrefix(name=name, token_ids=token_ids, seconds=seconds):
                mine[name] = PinnedPrefix(name=name, seconds=seconds, pages=len(token_ids) // PAGE_SIZE, held=0)
                return (mine[name],)
            case UnpinPrefix(name=name):
                if mine.pop(name, None) is None:
                    raise NotFoundError("there is no such prefix", code="prefix_not_found")
        return tuple(mine.values())

    def _script(self, request: GenerateRequest) -> Script:
        if self.script_for is not None:
            return self.script_for(request)
        return self.scripts[min(len(self.requests), len(self.scripts) - 1)]


def _events(request: GenerateRequest, script: Script) -> list[TokenEvent | None]:
    """The stream's events in order; None is where it waits for ever."""
    tokens, finish, stop_token_id = _until_end(request, script)
    events: list[TokenEvent | None] = []
    for start in range(0, max(len(tokens), 1), script.chunk):
        if script.hold_after is not None and start >= script.hold_after:
            return [*events, None]
        part = tuple(tokens[start : start + script.chunk])
        last = start + script.chunk >= len(tokens)
        events.append(
            TokenEvent(
                request_id=request.request_id,
                token_ids=part,
                logprobs=_logprobs(part, request.sampling.logprobs),
                prompt_logprobs=_logprobs(request.prompt_token_ids[1:], request.sampling.prompt_logprobs)
                if start == 0
                else (),
                finish_reason=finish if last else None,
                stop_token_id=stop_token_id if last else None,
                cached_tokens=script.cached_tokens if start == 0 else None,
                queue_seconds=0.0 if start == 0 else None,
                error=script.error if last else None,
                weights=None if script.weights is None else script.weights[last] if last or not start else None,
            )
        )
    return events


def _until_end(request: GenerateRequest, script: Script) -> tuple[list[int], FinishReason, int | None]:
    """The tokens up to the one that ends the stream, why it ends, and the stop token that ended it."""
    sampling = request.sampling
    tokens: list[int] = []
    if sampling.max_tokens == 0:
        return tokens, FinishReason.LENGTH, None
    for token in script.token_ids:
        tokens.append(token)
        if token in sampling.stop_token_ids:
            return tokens, FinishReason.STOP, token
        if token in sampling.eos_token_ids:
            return tokens, FinishReason.STOP, None
        if len(tokens) == sampling.max_tokens:
            return tokens, FinishReason.LENGTH, None
    return tokens, script.finish, None


def _logprobs(token_ids: Sequence[int], count: int | None) -> tuple[TokenLogprobs, ...]:
    """Invented but recognisable: token t has -t/1000, and the top ones are t, t+1, ..."""
    if count is None:
        return ()
    return tuple(
        TokenLogprobs(
            token_id=token,
            logprob=-token / 1000,
            rank=1,
            top_token_ids=tuple(range(token, token + count)),
            top_logprobs=tuple(-(token + i) / 1000 for i in range(count)),
        )
        for token in token_ids
    )
