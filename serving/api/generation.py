"""One client request's generations, from all its prompts: slots taken, prompts checked, streams merged and measured."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import cast

from serving.api.service import Service
from serving.errors import RequestError
from serving.generation.request import PreparedPrompt, TextDelta, TextRequest
from serving.observability.metrics import Outcome, StreamMeter

Deltas = AsyncGenerator[tuple[int, TextDelta], None]


class Generation:
    """`prepared` has one entry for each prompt once the first delta is out."""

    def __init__(
        self,
        service: Service,
        requests: list[TextRequest],
        arrival: float,
        *,
        client_names: Mapping[str, str] | None = None,
    ) -> None:
        """`client_names` are those that the client used for parameters which have another name below this layer."""
        self.prepared: list[PreparedPrompt] = []
        self.cached_tokens = 0
        self._service = service
        self._requests = requests
        self._arrival = arrival
        self._client_names = client_names or {}
        self._generated: dict[tuple[int, int], int] = {}  # tokens of each choice, whether it ended or not
        self._meters: dict[tuple[int, int], StreamMeter] = {}

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.prompt_tokens for prompt in self.prepared)

    @property
    def completion_tokens(self) -> int:
        return sum(self._generated.values())

    async def deltas(self) -> Deltas:
        """(prompt, delta) as they come. Closing it aborts what has not ended.

        Raises what Generator.prepare and Generator.stream raise, and OverloadedError where no slot is free.
        """
        n = max(self._requests[0].options.n, 1)
        slots = self._service.slots.take(n * len(self._requests), param="prompt" if n == 1 else "n")
        with self._named_for_client(), slots:
            for request in self._requests:
                self.prepared.append(await self._service.generator.prepare(request))
                self._service.metrics.prompt_tokens.observe(self.prepared[-1].prompt_tokens)
            async with aclosing(self._measured()) as deltas:
                async for item in deltas:
                    yield item

    @contextmanager
    def _named_for_client(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            name = self._client_names.get(error.param or "")
            if error.param is None or name is None:
                raise
            raise type(error)(error.message.replace(error.param, name), param=name, code=error.code) from None

    async def _measured(self) -> Deltas:
        self._meters = {
            (prompt, choice): StreamMeter(self._service.metrics, self._arrival)
            for prompt, prepared in enumerate(self.prepared)
            for choice in range(prepared.n)
        }
        outcome: Outcome = "abort"
        try:
            async with aclosing(self._merged()) as deltas:
                async for prompt, delta in deltas:
                    self._measure(prompt, delta)
                    yield prompt, delta
        except Exception:
            outcome = "error"
            raise
        finally:
            now = time.monotonic()
            for meter in self._meters.values():
                meter.end(now, outcome)

    def _measure(self, prompt: int, delta: TextDelta) -> None:
        now = time.monotonic()
        meter = self._meters[prompt, delta.index]
        meter.delta(now, delta.usage.completion_tokens)
        self._generated[prompt, delta.index] = delta.usage.completion_tokens
        if delta.finish_reason is None:
            return
        meter.end(now, cast(Outcome, delta.finish_reason.value))
        if delta.index == 0:
            self.cached_tokens += delta.usage.cached_tokens

    async def _merged(self) -> Deltas:
        if len(self.prepared) == 1:
            async with aclosing(self._service.generator.stream(self.prepared[0])) as deltas:
                async for delta in deltas:
                    yield 0, delta
            return
        # One slot: a prompt waits with its next delta until the reader took the last one.
        ready: asyncio.Queue[tuple[int, TextDelta | Exception | None]] = asyncio.Queue(maxsize=1)
        tasks = [
            asyncio.create_task(_feed(ready, prompt, self._service, prepared))
            for prompt, prepared in enumerate(self.prepared)
        ]
        try:
            running = len(tasks)
            while running:
                prompt, item = await ready.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield prompt, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(
    ready: asyncio.Queue[tuple[int, TextDelta | Exception | None]],
    prompt: int,
    service: Service,
    prepared: PreparedPrompt,
) -> None:
    try:
        async with aclosing(service.generator.stream(prepared)) as deltas:
            async for delta in deltas:
                await ready.put((prompt, delta))
        await ready.put((prompt, None))
    except Exception as error:  # handed to the reader, who raises it
        await ready.put((prompt, error))
