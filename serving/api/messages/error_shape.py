"""Failures as Anthropic's clients read them: {"type": "error", "error": {"type", "message"}}, with `param` and `code`
beside them as elsewhere."""

from typing import Any

# Where this protocol has another word than `WeftError.kind`, or HTTP's status says more than that.
_KINDS = {404: "not_found_error", 408: "timeout_error", 413: "request_too_large"}
_WORDS = {"server_error": "api_error", "cancelled_error": "api_error"}
THREAD = "thread"
# By these words the SDK's `tool_runner`, which asks for a thread first, goes on without one.
_UNTHREADED = {"details": {"error_code": "thread_unsupported_request", "unsupported": [THREAD]}}


def anthropic_shape(facts: dict[str, Any], status: int) -> dict[str, Any]:
    kind = _KINDS.get(status) or _WORDS.get(facts["type"], facts["type"])
    details = _UNTHREADED if facts["param"] == THREAD else {}
    return {"type": "error", "error": {**facts, "type": kind, **details}}
