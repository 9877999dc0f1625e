"""docs/errors.md against the sources: which codes there are, and with which status."""

import re
from collections import defaultdict
from typing import get_args

from starlette.exceptions import HTTPException

from serving.api.error_reply import http_error_code
from serving.engine.operation import EngineState
from serving.gateway.limit_store import LimitName
from serving.sessions.conversations.quota import LIMITS
from serving.sessions.conversations.tree_rows import missing
from tests.serving.raised_codes import KINDS, ROOT, Raised, raised_codes

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

# Codes that are put together where the program runs.
COMPUTED = {
    "api/health.py": {f"engine_{state}" for state in EngineState if state != EngineState.RUNNING},
    "gateway/gateway.py": set(get_args(LimitName)),
    "sessions/conversations/quota.py": set(LIMITS),
    "sessions/conversations/tree_rows.py": {missing(name).code for name in ("resp_1", "conv_1", "msg_1")},
}
# What is raised there and is told otherwise, or to nobody.
UNSENT = {
    ("api/batches/batch_lines.py", "duplicate_custom_id"),  # stands in the batch's `errors`
    ("api/batches/batch_lines.py", "invalid_value"),
    ("api/batches/batch_lines.py", "payload_too_large"),
    ("api/websocket.py", "slow_reader"),  # who does not read cannot be told
    ("engine/cluster_wire.py", "bad_seal"),  # between the hosts of a cluster
    ("engine/follower.py", "plans_differ"),
    ("engine/plan_wire.py", "plans_differ"),
    ("engine/local.py", "step_hangs"),  # ends the engine; its streams are told `engine_failed`
    ("orchestrator/moderation/judges/guard.py", "overloaded_error"),  # the policy says what a judge's failure is
    ("orchestrator/moderation/judges/guard.py", "server_error"),
    ("orchestrator/tools/fair_places.py", "overloaded"),  # the model reads it, in place of a tool's result
    ("orchestrator/tools/fair_places.py", "tenant_places"),
}


def listed() -> dict[str, set[str]]:
    """Statuses by code, as the page's tables have them: one for all codes of a row, or one for each."""
    found: dict[str, set[str]] = {}
    for line in PAGE.splitlines():
        row = re.match(r"\| ((?:`[a-z_]+`(?:, )?)+) \| ((?:[A-Z0-9_]+(?:, )?)+) \|", line)
        if row is None:
            continue
        codes, statuses = re.findall(r"`([a-z_]+)`", row[1]), row[2].split(", ")
        assert not found.keys() & codes, f"listed twice: {line}"
        if len(codes) == 1 or len(statuses) == 1:
            found |= {code: set(statuses) for code in codes}
        else:
            found |= {code: {status} for code, status in zip(codes, statuses, strict=True)}
    return found


def sent() -> dict[str, set[str]]:
    """Statuses by code, as the sources have them: HTTP's, and gRPC's where no status of HTTP's stands for it."""
    found: dict[str, set[str]] = defaultdict(set)
    for status in range(400, 500):
        found[http_error_code(HTTPException(status))].add(str(status))
    del found["http_error"]
    of_grpc: list[tuple[str, Raised]] = []
    for raised in raised_codes():
        for code in COMPUTED[raised.file] if raised.code is None else {raised.code}:
            if (raised.file, code) in UNSENT:
                continue
            if raised.file.startswith("api/grpc/"):
                of_grpc.append((code, raised))
            else:
                found[code].add(str(KINDS[raised.kind].http_status))
    for code, raised in of_grpc:
        known = {kind.grpc_code for kind in KINDS.values() if str(kind.http_status) in found[code]}
        if KINDS[raised.kind].grpc_code not in known:
            found[code].add(KINDS[raised.kind].grpc_code)
    return dict(found)


def test_the_page_lists_each_code_that_is_sent_with_its_status_and_no_other() -> None:
    assert listed() == sent()


def test_the_page_says_of_each_kind_what_it_is_in_both_protocols_and_whether_to_ask_again() -> None:
    kinds: dict[tuple[str, str, bool], set[str]] = defaultdict(set)
    for kind in KINDS.values():
        kinds[str(kind.http_status), kind.kind, kind.retryable].add(kind.grpc_code)
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([A-Z_, ]+) \| (yes|no)\b", PAGE, re.MULTILINE)
    assert {(status, kind, again == "yes"): set(grpc.split(", ")) for status, kind, grpc, again in rows} == kinds


def test_a_code_that_the_sources_do_not_show_is_known_here() -> None:
    assert {raised.file for raised in raised_codes() if raised.code is None} == set(COMPUTED)


def test_nothing_is_left_out_of_the_page_that_is_not_raised_any_more() -> None:
    assert {(raised.file, raised.code) for raised in raised_codes()} >= UNSENT
