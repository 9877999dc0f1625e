"""POST /v1/moderations: the judges of this deployment asked about a text, in OpenAI's form."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.caller import Caller
from serving.api.connection import while_connected
from serving.api.moderation_body import ModerationBody
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.engine.request import Priority
from serving.errors import NotFoundError
from serving.gateway.ask import Ask
from serving.gateway.lease import Tokens
from serving.orchestrator.moderation.moderation import Moderation, unavailable
from serving.orchestrator.moderation.panel import Judgement
from serving.orchestrator.moderation.policy import Policy
from serving.settings.moderation import CATEGORIES, MODERATION_MODEL

ALWAYS_TOLD = CATEGORIES[: CATEGORIES.index("jailbreak") + 1]  # OpenAI's, whose clients expect all of them, and ours
CHARS_PER_TOKEN = 4  # for the limits of a tenant: no tokenizer is asked


def moderation_routes(service: Service, moderation: Moderation, max_body_bytes: int) -> list[Route]:
    async def moderations(request: Request) -> Response:
        body = await read_typed(request, ModerationBody, max_body_bytes)
        if body.model not in (None, MODERATION_MODEL):
            raise NotFoundError(
                f"the model {body.model[:100]!r} moderates nothing here; leave it out, or send {MODERATION_MODEL!r}",
                param="model",
                code="model_not_found",
            )
        reply = await while_connected(request.receive, _judged(service, moderation, body.texts, request.state.caller))
        return Response(reply, media_type="application/json")

    return [Route("/v1/moderations", moderations, methods=["POST"])]


async def _judged(service: Service, moderation: Moderation, texts: list[str], caller: Caller) -> bytes:
    tokens = [len(text) // CHARS_PER_TOKEN + 1 for text in texts]
    ask = Ask(
        prompt_of={},
        prompt_tokens=sum(tokens),
        output_tokens=0,
        choices=0,
        longest_prompt=max(tokens),
        longest_stream=max(tokens),
        longest_output=0,
        output_was_stated=True,
        model=MODERATION_MODEL,
        stream=False,
        priority=Priority.BATCH,
        generates=False,
    )
    async with service.gateway.admit(caller.principal, ask) as lease:
        caller.reply_fields.update(lease.metadata)
        judgements = await moderation.judgements(texts)
        lease.settle(Tokens(prompt=ask.prompt_tokens))
    policy = moderation.policies.of(caller.principal.tenant)
    known = moderation.panel.categories
    results = [_result(judgement, policy, known) for judgement in judgements]
    return msgspec.json.encode({"id": f"modr-{caller.request_id}", "model": MODERATION_MODEL, "results": results})


def _result(judgement: Judgement, policy: Policy | None, known: frozenset[str]) -> dict[str, Any]:
    """Raises OverloadedError where a judge that must not fail has failed."""
    if judgement.failed:
        raise unavailable()
    told = [name for name in CATEGORIES if name in ALWAYS_TOLD or name in known]
    scores = {name: max((f.score for f in judgement.findings if f.category == name), default=0.0) for name in told}
    over = {name: scores[name] >= (0.5 if policy is None else policy.threshold(name)) for name in told}
    return {
        "flagged": any(over.values()),
        "categories": over,
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] if name in known else [] for name in told},
    }
