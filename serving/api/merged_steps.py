"""The steps of several prompts as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from serving.generation.choice import ChoiceStep
from serving.generation.generator import ChoiceGate, Generator
from serving.generation.request import PreparedPrompt
from serving.sessions.logged_generation import LoggedEvent

Steps = AsyncGenerator[tuple[int, ChoiceStep], None]
StepsOf = Callable[[Generator, Sequence[PreparedPrompt], Sequence[LoggedEvent], Sequence[ChoiceGate]], Steps]


async def merged_steps(
    generator: Generator,
    prepared: Sequence[PreparedPrompt],
    past: Sequence[LoggedEvent] = (),
    gates: Sequence[ChoiceGate] = (),
) -> Steps:
    """(prompt, step) of all prompts as they come, after those of `past`; through the `gates`, one a prompt, if any."""
    if len(prepared) == 1:
        told = [(event.choice, event.event) for event in past]
        async with aclosing(generator.steps(prepared[0], told, gates[0] if gates else None)) as steps:
            async for step in steps:
                yield 0, step
        return
    # One slot: a prompt waits with its next step until the reader took the last one.
    ready: asyncio.Queue[tuple[int, ChoiceStep | Exception | None]] = asyncio.Queue(maxsize=1)
    tasks = [
        asyncio.create_task(
            _feed(
                ready,
                prompt,
                generator.steps(
                    one,
                    [(event.choice, event.event) for event in past if event.prompt == prompt],
                    gates[prompt] if gates else None,
                ),
            )
        )
        for prompt, one in enumerate(prepared)
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
    ready: asyncio.Queue[tuple[int, ChoiceStep | Exception | None]],
    prompt: int,
    source: AsyncGenerator[ChoiceStep, None],
) -> None:
    try:
        async with aclosing(source) as steps:
            async for step in steps:
                await ready.put((prompt, step))
        await ready.put((prompt, None))
    except Exception as error:  # handed to the reader, who raises it
        await ready.put((prompt, error))
