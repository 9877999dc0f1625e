"""How canary prompts reach the model: as chat completions of a tenant of the server's own, behind everybody else."""

import msgspec

from serving.access import TierConfig
from serving.api.caller import Caller
from serving.api.chat_body import ChatBody, SystemMessage, UserMessage
from serving.api.chat_reply import ChatReply
from serving.api.service import Service, new_id
from serving.engine.request import Priority
from serving.gateway.principal import Principal
from serving.orchestrator.quality_watch.canary import Canary
from serving.orchestrator.quality_watch.quality_watch import Ask

TENANT = "quality-watch"


def canary_calls(service: Service) -> Ask:
    """Raises what the gate raises. An answer is always a fresh one, and the likeliest."""
    batch = Priority.BATCH.value
    limits = TierConfig(priority=batch, best_priority=batch)
    principal = Principal(key_id=TENANT, tenant=TENANT, tier=TENANT, limits=limits)

    async def ask(canary: Canary) -> str:
        system = [] if canary.system is None else [SystemMessage(content=canary.system)]
        body = ChatBody(
            messages=[*system, UserMessage(content=canary.prompt)],
            temperature=0.0,
            max_tokens=canary.max_tokens,
            priority=Priority.BATCH,
            fallback=False,
        )
        reply = ChatReply(service, body, Caller(request_id=new_id(), principal=principal), reuses=False)
        return msgspec.json.decode(await reply.whole())["choices"][0]["message"]["content"]

    return ask
