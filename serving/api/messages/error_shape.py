"""Failures as Anthropic's clients read them: {"type": "error", "error": {"type", "message"}}, with `param` and `code`
beside them as elsewhere."""

from typing import Any

# Where this protocol has another word than `WeftError.kind`, or HTTP's status says more than that.
_KINDS = {404: "not_found_error", 408: "timeout_error", 413: "request_too_large"}
_WORDS = {"server_error": "api_error", "cancelled_error": "api_error"}


def anthropic_shape(facts: dict[str, Any], status: int) -> dict[str, Any]:
    kind = _KINDS.get(status) or _WORDS.get(facts["type"], facts["type"])
    return {"type": "error", "error": {**facts, "type": kind}}
