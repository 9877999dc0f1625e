"""Which model answers a request: the one that is named, the one that the rules find, or the smaller one that stands in
while that one's engine is away or full. What stands in says so: a client is never given another model in silence.

Only before anything is generated: a stream that has begun ends with the model that began it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from serving.api.caller import Caller
from serving.api.service import Service
from serving.errors import RequestError
from serving.gateway.fallback import Fallback, Reason
from serving.gateway.ladder import Rung
from serving.gateway.model_rules import RequestFacts, first_match
from serving.gateway.queue import Load
from serving.gateway.rate_fields import FALLBACK
from serving.generation.request import TextRequest
from serving.observability.logs import log_event
from serving.settings.routing import RoutingRule, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    service: Service  # of the model that answers
    name: str  # of that model, with its adapter where the client named one
    named: str | None  # what the client sent, where it is this model's or an adapter's of it
    fallback: Fallback | None = None


async def chosen_model(
    service: Service, requests: Sequence[TextRequest], caller: Caller, *, least: Sequence[TextRequest] | None = None
) -> ModelChoice:
    """For requests of one client that name the same model. `service` is any of the server's. `least` is what must fit
    a model that stands in, where that is not all of them.

    Raises NotFoundError for a name that means none.
    """
    named = requests[0].model
    rules = () if named is None else service.routing.rules_of(named)
    if rules and any(_names_tokens(request) for request in requests):
        raise RequestError(
            f"token ids belong to one model, and {named!r} stands for several: name one of them", param="model"
        )
    if rules:
        target, named = await _by_rules(service, rules, requests, caller), None
    else:
        target = service.of(named)
    name = target.card.name
    if named not in (None, name):
        return ModelChoice(service=target, name=named or name, named=named)  # what was trained for it stays with it
    fallback = None
    if all(request.may_fall_back for request in requests):
        fallback = await _fallback(target, least or requests, caller)
    if fallback is None:
        return ModelChoice(service=target, name=name, named=named)
    target.metrics.fell_back(fallback.answered_by, fallback.reason)
    log_event(logger, "fallback", level=logging.WARNING, request_id=caller.request_id, **fallback.facts)
    caller.reply_fields[FALLBACK] = fallback.header
    name = fallback.answered_by
    return ModelChoice(service=target.of(name), name=name, named=None, fallback=fallback)


async def _by_rules(
    service: Service, rules: Sequence[RoutingRule], requests: Sequence[TextRequest], caller: Caller
) -> Service:
    counted = dict.fromkeys(rule.target for rule in rules if rule.counts_tokens)
    loaded = dict.fromkeys(rule.target for rule in rules if rule.asks_load)
    facts = RequestFacts(
        tier=caller.principal.tier,
        task=task_of(requests[0]),
        prompt_tokens={name: await _longest_prompt(service.of(name), requests) for name in counted},
        load={name: await _load(service.of(name), requests[0], caller) for name in loaded},
    )
    return service.of(first_match(rules, facts).target)


def task_of(request: TextRequest) -> Task:
    if request.tools:
        return "tools"
    if request.grammar is not None:
        return "json"
    return "chat" if request.messages is not None else "text"


async def _load(service: Service, request: TextRequest, caller: Caller) -> Load | None:
    if not await _is_up(service):
        return None
    return service.gateway.load(service.card.name, caller.principal, request.priority)


async def _longest_prompt(service: Service, requests: Sequence[TextRequest]) -> int | None:
    """Tokens; None where this model cannot read one of them."""
    try:
        return max([len(await service.generator.encoded(request)) for request in requests])
    except RequestError:
        return None


async def _fallback(target: Service, requests: Sequence[TextRequest], caller: Caller) -> Fallback | None:
    """None where the target answers, or where nothing can in its place: then it says itself why not."""
    smaller = target.routing.fallback.get(target.card.name)
    if smaller is None:
        return None
    reason = await _why_not(target, requests[0], caller, patience=target.routing.patience_seconds)
    while reason is not None and smaller is not None:
        service = target.of(smaller)
        if await _why_not(service, requests[0], caller) is None and await _can_answer(service, requests, caller):
            return Fallback(asked=target.card.name, answered_by=smaller, reason=reason)
        smaller = target.routing.fallback.get(smaller)
    return None


async def _why_not(service: Service, request: TextRequest, caller: Caller, patience: float = 0.0) -> Reason | None:
    """None where its engine is there and has room for this request."""
    if not await _is_up(service, patience):
        return "engine_down"
    load = service.gateway.load(service.card.name, caller.principal, request.priority)
    gives_away = load.rung >= Rung.FALLBACK and service.card.name in service.routing.fallback
    return "engine_full" if gives_away or load.is_over else None


async def _is_up(service: Service, patience: float = 0.0) -> bool:
    return service.watch is None or await service.watch.is_up(patience)


async def _can_answer(service: Service, requests: Sequence[TextRequest], caller: Caller) -> bool:
    """The caller may use it, the requests fit its window, and it can do what they ask for. Token ids are of the model
    that they were made for."""
    if any(_names_tokens(request) for request in requests):
        return False
    allowed = caller.principal.limits.models
    if allowed and service.card.name not in allowed:
        return False
    try:
        for request in requests:
            if request.tools:
                service.check_tool_format()
            await service.generator.prepare(request)
    except RequestError:
        return False
    return True


def _names_tokens(request: TextRequest) -> bool:
    options = request.options
    by_id = (options.logit_bias, options.allowed_token_ids, options.stop_token_ids)
    return isinstance(request.prompt, tuple) or any(by_id)
