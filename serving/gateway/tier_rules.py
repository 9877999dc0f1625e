"""What a tier never allows, and what it makes of a request that leaves something open."""

from serving.engine.request import Priority
from serving.errors import ContextLengthError, ForbiddenError, RequestError
from serving.gateway.ask import Ask
from serving.gateway.principal import Principal

_RANK = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}


def check_tier(principal: Principal, ask: Ask) -> None:
    """Raises ForbiddenError for a model, RequestError for a length: asking again will not help."""
    limits = principal.limits
    if limits.models and ask.model not in limits.models:
        raise ForbiddenError(f"this key may not use the model {ask.model!r}", param="model", code="model_not_allowed")
    if limits.context_tokens is not None:
        if ask.longest_prompt >= limits.context_tokens:
            raise ContextLengthError(
                f"the prompt has {ask.longest_prompt} tokens; this key's tier allows {limits.context_tokens}, and at "
                "least one must be left for the output",
                code="tier_context_exceeded",
            )
        if ask.output_was_stated and ask.longest_stream > limits.context_tokens:
            raise ContextLengthError(
                f"prompt and output come to {ask.longest_stream} tokens; this key's tier allows "
                f"{limits.context_tokens}",
                param="max_tokens",
                code="tier_context_exceeded",
            )
    if limits.output_tokens is not None and ask.output_was_stated and ask.longest_output > limits.output_tokens:
        raise RequestError(
            f"max_tokens is {ask.longest_output}; this key's tier allows {limits.output_tokens}",
            param="max_tokens",
            code="tier_output_exceeded",
        )


def class_of(principal: Principal, wished: Priority | None) -> Priority:
    """Raises ForbiddenError for a class above the tier's."""
    if wished is None:
        return principal.priority
    if _RANK[wished] < _RANK[principal.best_priority]:
        raise ForbiddenError(
            f"this key's requests may be {principal.best_priority.value} at best, not {wished.value}",
            param="priority",
            code="priority_not_allowed",
        )
    return wished


def output_cap(principal: Principal, ask: Ask) -> int | None:
    """Tokens of a choice whose request names no max_tokens."""
    limits = principal.limits
    if ask.output_was_stated:
        return None
    caps = [limits.output_tokens] if limits.output_tokens is not None else []
    if limits.context_tokens is not None:
        caps.append(limits.context_tokens - ask.longest_prompt)
    return min(caps, default=None)


def reserved_tokens(principal: Principal, ask: Ask, cap: int | None) -> int:
    """The most that the request can use; where it names no max_tokens the tier's estimate of it.

    Raises RequestError where the tenant's minute can never hold so much.
    """
    limits = principal.limits
    output = ask.output_tokens if cap is None else min(ask.output_tokens, ask.choices * cap)
    if not ask.output_was_stated:
        output = min(output, ask.choices * limits.unstated_output_tokens)
    wanted = ask.prompt_tokens + output
    if limits.tokens_per_minute is not None and wanted > limits.tokens_per_minute:
        raise RequestError(
            f"the request may use {wanted} tokens, more than this key's {limits.tokens_per_minute} per minute: make "
            "the prompt shorter, or max_tokens smaller",
            param="max_tokens",
            code="request_exceeds_rate_limit",
        )
    return wanted
