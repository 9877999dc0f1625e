"""For whom conversations and responses are kept, and how much of them."""

from serving.gateway.principal import Principal
from serving.sessions.conversations.quota import Quota
from serving.sessions.conversations.records import Owner


def owner_for(principal: Principal, kept: Quota, user: str = "") -> Owner:
    """`kept` is the deployment's, of tiers that do not say."""
    own = principal.limits.storage
    quota = Quota(
        trees=kept.trees if own.conversations is None else own.conversations,
        items=kept.items if own.conversation_items is None else own.conversation_items,
        bytes=kept.bytes if own.conversation_bytes is None else own.conversation_bytes,
    )
    return Owner(principal.tenant, user, quota)
