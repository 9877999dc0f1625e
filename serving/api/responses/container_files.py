"""The files that a request names for its programs: `container.file_ids` of the code interpreter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.api.files.file_store import FileStore
from serving.api.responses.reference import referred_to_by
from serving.api.responses.tools import AnyTool, AutoContainer, CodeInterpreterTool, TurnTools
from serving.errors import RequestError, UnsupportedError
from serving.orchestrator.tools.code_interpreter import FILES, CodeInterpreter
from serving.orchestrator.tools.file_names import plain_names
from serving.orchestrator.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    files: FileStore | None  # None: this server keeps none
    toolbox: Toolbox

    async def given(self, tenant: str, asked: Sequence[AnyTool], tools: TurnTools) -> TurnTools:
        """`tools` with the files beside its programs, and the model told of them. Raises NotFoundError for a file that
        this tenant does not have, RequestError where they are too many or too large, UnsupportedError."""
        for number, tool in enumerate(asked):
            if isinstance(tool, CodeInterpreterTool) and isinstance(tool.container, AutoContainer):
                if not tool.container.file_ids:
                    continue
                ids = list(dict.fromkeys(tool.container.file_ids))
                paths = await self._paths(tenant, ids, f"tools[{number}].container.file_ids")
                tools = tools.with_setting(CodeInterpreter.name, FILES, paths, note=_note(paths))
        return tools

    async def _paths(self, tenant: str, ids: Sequence[str], param: str) -> Mapping[str, Path]:
        """By the names that programs see."""
        interpreter = self.toolbox.registry.get(CodeInterpreter.name)
        if self.files is None or not isinstance(interpreter, CodeInterpreter):
            raise UnsupportedError(f"{param}: this server keeps no files: files.folder names no folder", param=param)
        limits = interpreter.limits
        if len(ids) > limits.given_files:
            raise RequestError(
                f"{param} may name {limits.given_files} files, not {len(ids)}", param=param, code="invalid_value"
            )
        found = []
        for number, file_id in enumerate(ids):
            with referred_to_by(f"{param}[{number}]"):
                found.append(await self.files.find(tenant, file_id))
        total = sum(file.bytes for file in found)
        if total > limits.given_bytes:
            raise RequestError(
                f"{param}: the files have {total} bytes together, and may have {limits.given_bytes}",
                param=param,
                code="invalid_value",
            )
        named = plain_names((file.id, file.filename) for file in found)
        return {name: self.files.path(file_id) for name, file_id in named.items()}


def _note(names: Mapping[str, Path]) -> str:
    return f"Files that it can read there: {'; '.join(names)}."
