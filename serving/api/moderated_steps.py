"""A request's steps as its tenant's policy lets them through: the one place where moderation meets generation."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from serving.api.merged_steps import Steps, StepsOf, merged_steps
from serving.api.service import Service
from serving.generation.choice import ChoiceStep
from serving.generation.encodable_text import encodable
from serving.generation.generator import ChoiceGate
from serving.generation.request import PreparedPrompt, TextRequest
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.moderation.paced_choice import Prompt
from serving.orchestrator.moderation.policy import Policy
from serving.orchestrator.moderation.review_record import Subject
from serving.sessions.logged_generation import LoggedEvent

HEADER = "x-weft-moderation"  # what the policy notes of the prompt: category and score

Noted = Callable[[Mapping[str, float]], None]  # category and score
Check = Callable[[], Coroutine[Any, Any, Mapping[str, float]]]  # of the prompts


def moderated_steps(
    service: Service,
    subject: Subject,
    requests: Sequence[TextRequest],
    prepared: Sequence[PreparedPrompt],
    past: Sequence[LoggedEvent] = (),
    noted: Noted = lambda _: None,
    source: StepsOf = merged_steps,
    answer: int = 0,
) -> Steps:
    """(prompt, step) of all prompts, after those of `past`. The prompts are judged while they are read: the first step
    waits for the verdict, which is `noted` where there is something to note. Where a part of the answer is `past`, the
    prompts have been judged. `source` makes the steps that are judged;
    `answer` tells those of one turn apart.

    Raises, beside what Generator.steps raises, what Moderation.check_input raises: then the generation is closed.
    """
    moderation = service.moderation
    policy = None if moderation is None else moderation.policies.of(subject.tenant)
    if moderation is None or policy is None:
        return source(service.generator, prepared, past, ())
    texts = [_judged_texts(service, policy, *pair) for pair in zip(requests, prepared, strict=True)]
    gates: tuple[ChoiceGate, ...] = ()
    if policy.judges_output:
        gates = tuple(
            partial(
                _gate,
                service,
                moderation,
                policy,
                subject,
                number,
                answer,
                prompt,
                texts[number],
                past,
                bool(request.tools or prompt.grammar),
            )
            for number, (request, prompt) in enumerate(zip(requests, prepared, strict=True))
        )
    steps = source(service.generator, prepared, past, gates)
    if past or not policy.judges_input:
        return steps
    param = "prompt" if requests[0].messages is None else "messages"
    every = [text for each in texts for text in each]
    check = partial(moderation.check_input, policy, subject, every, param=param)
    return _after_verdict(steps, check, noted)


async def _after_verdict(steps: Steps, check: Check, noted: Noted) -> Steps:
    verdict = asyncio.create_task(check())
    async with aclosing(steps):
        first = asyncio.ensure_future(anext(steps, None))
        try:
            await asyncio.wait({first, verdict}, return_when=asyncio.FIRST_COMPLETED)
            if flags := await verdict:
                noted(flags)
            step = await first
        finally:
            for task in (first, verdict):
                task.cancel()
            await asyncio.gather(first, verdict, return_exceptions=True)
        if step is None:
            return
        yield step
        async for step in steps:
            yield step


def _gate(
    service: Service,
    moderation: Moderation,
    policy: Policy,
    subject: Subject,
    number: int,
    answer: int,
    prepared: PreparedPrompt,
    texts: Sequence[str],
    past: Sequence[LoggedEvent],
    has_literals: bool,
    index: int,
    steps: AsyncGenerator[ChoiceStep, None],
    /,
) -> AsyncGenerator[ChoiceStep, None]:
    choice = service.generator.choices(prepared)[index]
    prompt = Prompt(prepared.prompt_tokens, texts[-1] if texts else "")
    place = f"{number}.{index}.{answer}" if answer else f"{number}.{index}"
    paced = moderation.paced(policy, subject, place, index, choice, prompt, has_literals=has_literals)
    paced.recall(event.event for event in past if (event.prompt, event.choice) == (number, index))
    return paced.steps(steps)


def _judged_texts(service: Service, policy: Policy, request: TextRequest, prepared: PreparedPrompt) -> list[str]:
    """A prompt as it is; of a conversation, each message whose role the policy names."""
    if request.messages is not None:
        texts = [_text_of(message) for message in request.messages if message.get("role") in policy.roles]
        return [text for text in texts if text]
    if isinstance(request.prompt, str):
        return [request.prompt]
    return [service.generator.detokenize(list(prepared.prompt_token_ids))]


def _strings(arguments: Any) -> list[str]:
    """Keys and strings of what is JSON: an escape in it hides from a judge what a template then writes plainly."""
    try:
        left = [json.loads(arguments) if isinstance(arguments, str) else arguments]
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    while left:
        match left.pop():
            case str(text):
                found.append(encodable(text))
            case dict(items):
                left += reversed([*itertools.chain.from_iterable(items.items())])
            case list(items):
                left += reversed(items)
    return found


def _text_of(message: dict[str, Any]) -> str:
    """All that a template could write of it: contents, or the refusal in their place, reasoning, the speaker, names and
    arguments of calls, as they were sent and as a template reads them."""
    content = message.get("content") or message.get("refusal")
    parts = [*(content if isinstance(content, list) else [content]), message.get("reasoning_content")]
    parts.append(message.get("name"))
    texts = [part.get("text") or part.get("refusal") if isinstance(part, dict) else part for part in parts]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        texts += [function.get("name"), function.get("arguments"), *_strings(function.get("arguments"))]
    return "\n".join(text for text in texts if isinstance(text, str))
