"""Rate-limit values as OpenAI names them: HTTP headers, or gRPC trailers under the same names."""

REPLY_FIELDS = (
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "weft-degraded",
    "weft-predicted-wait",
)
