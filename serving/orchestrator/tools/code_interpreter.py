"""Python that the model writes, run in the sandbox, with the turn's files beside it."""

import time
from typing import Any

from serving.orchestrator.tools.fair_places import FairPlaces
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits, SandboxResult

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
            result = await self._sandbox.run(arguments["code"], scope.files, scope.settings.get(FILES))
        facts = {
            "outcome": result.outcome,
            "exit_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "cut": result.cut,
            "files": {name: len(data) for name, data in result.files.items()},
        }
        failed = result.outcome != "ended" or result.exit_code != 0
        return ToolResult(text=_told(result), facts=facts, is_error=failed, files=result.files)


def _told(result: SandboxResult) -> str:
    parts = [result.stdout.rstrip("\n")]
    if result.stderr.strip():
        parts.append(f"stderr:\n{result.stderr.rstrip()}")
    if result.outcome != "ended":
        parts.append(_ENDINGS[result.outcome])
    elif result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    if result.cut:
        parts.append("there was more output than is kept")
    if result.files:
        parts.append(f"files: {', '.join(result.files)}")
    return "\n".join(part for part in parts if part) or "the program printed nothing"
