"""Rate-limit values as OpenAI names them: HTTP headers, or gRPC trailers under the same names."""

import math
from collections.abc import Mapping

from serving.gateway.limit_store import Verdict
from serving.gateway.window import WindowState

DEGRADED = "weft-degraded"
FALLBACK = "weft-fallback"
PREDICTED_WAIT = "weft-predicted-wait"
REPLY_FIELDS = (
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    DEGRADED,
    FALLBACK,
    PREDICTED_WAIT,
)


def rate_fields(verdict: Verdict | None) -> Mapping[str, str]:
    """Of the limits that the tenant has; `reset` is when all of the limit is free again, in seconds as `6s`."""
    if verdict is None:
        return {}
    return {**_fields("requests", verdict.requests), **_fields("tokens", verdict.tokens)}


def _fields(what: str, state: WindowState | None) -> Mapping[str, str]:
    if state is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(state.limit),
        f"x-ratelimit-remaining-{what}": str(state.remaining),
        f"x-ratelimit-reset-{what}": f"{math.ceil(state.reset_seconds)}s",
    }
