"""The container that a turn's programs leave their files in.

The one that a request names; or ("auto") the one that the conversation's programs used last, while it is there; or a
new one, which the turn's first program makes.
"""

from collections.abc import Sequence

from serving.api.containers.container import USER, new_container_id
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.containers.turn_workspace import TurnWorkspace
from serving.api.responses.reference import referred_to_by
from serving.api.responses.tools import AnyTool, CodeInterpreterTool, TurnTools
from serving.errors import NotFoundError, UnsupportedError
from serving.orchestrator.tools.code_interpreter import WORKSPACE, CodeInterpreter
from serving.sessions.conversations.records import Item

LOST = "the files that this conversation's programs wrote are gone: their container has expired, or was deleted"


async def container_of(
    containers: ContainerStore | None, owner: ContainerOwner, asked: Sequence[AnyTool], items: Sequence[Item]
) -> TurnWorkspace | None:
    """`items` are the conversation's, the input last. None where no program can run, or this server keeps no files.
    Raises NotFoundError for a container that this tenant does not have, UnsupportedError."""
    for number, tool in reversed(list(enumerate(asked))):
        if not isinstance(tool, CodeInterpreterTool):
            continue
        if not isinstance(tool.container, str):
            return None if containers is None else await _auto(containers, owner, items)
        param = f"tools[{number}].container"
        if containers is None:
            raise UnsupportedError(
                f'{param}: this server keeps no files, and so no containers; send {{"type": "auto"}}', param=param
            )
        with referred_to_by(param):
            found = await containers.files(owner.tenant, tool.container)
        return TurnWorkspace(containers, owner, tool.container, found)
    return None


def in_container(tools: TurnTools, workspace: TurnWorkspace) -> TurnTools:
    """The model is told of files that clients have put there; of its programs' own it has read."""
    theirs = [file.name for file in workspace.found if file.source == USER]
    note = f"Files that are there: {'; '.join(theirs)}." if theirs else ""
    if workspace.lost:
        note = "The files of earlier programs are gone."
    return tools.with_setting(CodeInterpreter.name, WORKSPACE, workspace, note=note)


async def _auto(containers: ContainerStore, owner: ContainerOwner, items: Sequence[Item]) -> TurnWorkspace:
    last = next((item for item in reversed(items) if item["type"] == "code_interpreter_call"), None)
    if last is None:
        return TurnWorkspace(containers, owner, new_container_id(), None)
    used = str(last["container_id"])
    try:
        return TurnWorkspace(containers, owner, used, await containers.files(owner.tenant, used))
    except NotFoundError:  # it has expired
        lost = used if last.get("files") else None
        return TurnWorkspace(containers, owner, new_container_id(), None, lost=lost)
