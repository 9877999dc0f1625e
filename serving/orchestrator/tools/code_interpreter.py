"""Python that the model writes, run in the sandbox, with the turn's files beside it."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from serving.orchestrator.tools.fair_places import FairPlaces
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits, SandboxResult
from serving.orchestrator.tools.workspace import Workspace

WORKSPACE = "workspace"  # of a request's settings: where programs leave their files; without one, in the turn
KEPT = "kept"  # of a result's facts: the files in the workspace that the program wrote
FILES = "files"  # of a request's settings: paths by plain names, for programs to read
_ENDINGS = {"time_limit": "it was stopped: it ran too long", "memory_limit": "it was stopped: it used too much memory"}


class CodeInterpreter:
    """At most `concurrent` programs run at once, and so many of one tenant; the others wait for their turn."""

    name = "code_interpreter"
    idempotent = True  # a program leaves nothing behind but the files that it gives back

    def __init__(self, sandbox: Sandbox, *, concurrent: int = 4, tenant_concurrent: int = 2) -> None:
        self._sandbox = sandbox
        self._places = FairPlaces(concurrent, tenant_concurrent, "programs")

    @property
    def limits(self) -> SandboxLimits:
        return self._sandbox.limits

    @property
    def description(self) -> str:
        return (
            "Runs a Python program (standard library, no network) and gives back what it prints. Files of the "
            "conversation are in the working folder; files that the program writes there are kept. Variables are not "
            f"kept from one call to the next. It has {self._sandbox.limits.seconds:g} seconds."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        code = {"type": "string", "description": "the program; print what you want to see"}
        return {"type": "object", "properties": {"code": code}, "required": ["code"], "additionalProperties": False}

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        # What is left of the call's time when it gets its place is enough for a program.
        patience = scope.deadline - time.monotonic() - self._sandbox.limits.seconds
        async with self._places.place(scope.tenant, patience):
            return await self._ran(arguments["code"], scope, scope.settings.get(WORKSPACE))

    async def _ran(self, code: str, scope: ToolScope, workspace: Workspace | None) -> ToolResult:
        given = scope.settings.get(FILES)
        if workspace is None:
            result = await self._sandbox.run(code, scope.files, given)
            return _result(result, {name: len(data) for name, data in result.files.items()}, result.left_out)
        result = await self._sandbox.run(code, None, given, await workspace.open())
        kept = await workspace.keep(result.files, result.removed)
        names = {file.filename: file.bytes for file in kept.files}
        made = _result(replace(result, files={}), names, {**result.left_out, **kept.left_out})
        return replace(made, facts={**made.facts, KEPT: [asdict(file) for file in kept.files]})


def _result(result: SandboxResult, names: Mapping[str, int], left_out: Mapping[str, str]) -> ToolResult:
    """`names` with sizes in bytes."""
    facts = {
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "cut": result.cut,
        "files": dict(names),
        "left_out": dict(left_out),
    }
    failed = result.outcome != "ended" or result.exit_code != 0
    return ToolResult(text=_told(result, names, left_out), facts=facts, is_error=failed, files=result.files)


def _told(result: SandboxResult, names: Mapping[str, int], left_out: Mapping[str, str]) -> str:
    parts = [result.stdout.rstrip("\n")]
    if result.stderr.strip():
        parts.append(f"stderr:\n{result.stderr.rstrip()}")
    if result.outcome != "ended":
        parts.append(_ENDINGS[result.outcome])
    elif result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    if result.cut:
        parts.append("there was more output than is kept")
    if names:
        parts.append(f"files: {', '.join(names)}")
    if left_out:
        more = f"; and {result.more_left_out} more" if result.more_left_out else ""
        parts.append(f"not kept: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}{more}")
    return "\n".join(part for part in parts if part) or "the program printed nothing"
