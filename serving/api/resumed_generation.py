"""A generation that another process began: its rest, for the log."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import text_request
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import text_requests
from serving.api.generation import Events
from serving.api.moderated_steps import moderated_steps
from serving.api.request_events import recorded_request
from serving.api.service import Service, new_id
from serving.api.stream_routes import CHAT, COMPLETION
from serving.engine.remote import NOT_ACCEPTED
from serving.errors import EngineUnavailableError, OverloadedError
from serving.events.event_types import Protocol
from serving.gateway.ask import Ask
from serving.gateway.principal import Principal
from serving.generation.request import TextRequest
from serving.observability.metrics import Outcome
from serving.orchestrator.moderation.review_record import Subject
from serving.sessions.logged_generation import Admitted, LoggedEvent

PATIENCE_SECONDS = 120.0  # how long a stream waits for an engine that takes it
FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0
_PROTOCOLS: Mapping[str, Protocol] = {CHAT: "chat.completions", COMPLETION: "completions"}


async def resumed_events(service: Service, admitted: Admitted, past: Sequence[LoggedEvent]) -> Events:
    """What follows `past`. It was admitted once, so no limit refuses it now, and an engine that starts is waited for.

    Raises what Generator.stream raises.
    """
    service = service.of(admitted.model or None)
    # A fresh id each time: the engine may not yet know that the process which had asked before is gone.
    prompts = [replace(prompt, request_id=f"{prompt.request_id}@{new_id()[:8]}") for prompt in admitted.prompts]
    choices = sum(prompt.n for prompt in prompts)
    outcome: Outcome = "abort"
    told = list(past)
    try:
        principal = msgspec.msgpack.decode(admitted.principal, type=Principal)
        requests = _requests(admitted)
        subject = Subject(principal.tenant, admitted.request_id, requests[0].user)
        model, base = service.model_id(prompts[0].adapter), service.card.name
        ask = Ask.of(prompts, model=model, stream=True, continues=True, base=base)
        protocol = _PROTOCOLS.get(admitted.protocol, "internal")
        caller = Caller(request_id=admitted.request_id, principal=principal, protocol=protocol)
        events = recorded_request(service.events, caller, service.card.name, requests[0].user)
        slots = service.slots.take(choices, service.metrics.open_streams, param="n", admitted=True)
        with events as recorded, slots:
            wait, deadline = FIRST_WAIT_SECONDS, time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    steps = moderated_steps(service, subject, requests, prompts, told)
                    async with service.gateway.admit(principal, ask) as lease, aclosing(steps):
                        recorded.admitted(lease, prompts)
                        async for prompt, step in steps:
                            recorded.see(prompt, step)
                            event = LoggedEvent(prompt, step.index, step.event)
                            told.append(event)
                            if step.delta is not None and step.delta.finish_reason is not None:
                                service.metrics.finished[step.delta.finish_reason.value].inc()
                            yield event
                    outcome = "stop"
                    return
                except (EngineUnavailableError, OverloadedError) as error:
                    refused = isinstance(error, OverloadedError) or error.code == NOT_ACCEPTED
                    if not refused or time.monotonic() >= deadline:
                        raise
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    except Exception:
        outcome = "error"
        raise
    finally:
        if outcome != "stop":
            service.metrics.finished[outcome].inc()


def _requests(admitted: Admitted) -> list[TextRequest]:
    """As they were asked: it may be that nobody has judged them yet."""
    if admitted.protocol == CHAT:
        return [text_request(msgspec.json.decode(admitted.body, type=ChatBody), admitted.request_id)]
    if admitted.protocol == COMPLETION:
        return text_requests(msgspec.json.decode(admitted.body, type=CompletionBody), admitted.request_id)
    return [TextRequest(request_id=prompt.request_id, prompt=prompt.prompt_token_ids) for prompt in admitted.prompts]
