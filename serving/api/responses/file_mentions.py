"""Where an answer names files of its container, as annotations beside its text.

A name counts where it stands as a whole word, alone or behind the working folder: `total.csv`, `/mnt/data/total.csv`,
`sandbox:/mnt/data/total.csv`, as models write links.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from serving.api.containers.container import FOLDER
from serving.orchestrator.tools.workspace import WorkspaceFile

MOST = 64  # annotations of one message
_BEYOND = 2  # characters after a name that tell whether it goes on


class FileMentions:
    """Reads a text as it is told."""

    def __init__(self, files: Iterable[WorkspaceFile]) -> None:
        self._files: dict[str, WorkspaceFile] = {}
        for file in files:
            self._files[file.filename] = self._files[quote(file.filename)] = file
        names = "|".join(re.escape(name) for name in sorted(self._files, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w./-])(?:(?:sandbox:)?{FOLDER}/|\./)?({names})(?![\w/-]|\.\w)")
        self._longest = max(map(len, self._files), default=0) + len(f"sandbox:{FOLDER}/") + _BEYOND
        self._text = ""  # what may still be a name's, with the character before it
        self._before = 0  # characters told before that
        self._from = 0  # in the text, where the next match may begin
        self._found = 0

    def feed(self, told: str, *, last: bool = False) -> list[dict[str, Any]]:
        """What has become known to be a name."""
        if not self._files:
            return []
        self._text += told
        found: list[dict[str, Any]] = []
        may_begin = len(self._text) - self._longest
        for match in self._pattern.finditer(self._text, self._from):
            if match.end() + _BEYOND > len(self._text) and not last:
                may_begin = min(may_begin, match.start())
                break
            self._from = match.end()
            found.append(self._citation(match))
        self._from = max(self._from, may_begin)
        gone = max(0, self._from - 1)
        self._text, self._before, self._from = self._text[gone:], self._before + gone, self._from - gone
        kept = found[: MOST - self._found]
        self._found += len(kept)
        return kept

    def _citation(self, match: re.Match[str]) -> dict[str, Any]:
        file = self._files[match[1]]
        return {
            "type": "container_file_citation",
            "container_id": file.container_id,
            "file_id": file.file_id,
            "filename": file.filename,
            "start_index": self._before + match.start(),
            "end_index": self._before + match.end(),
        }
