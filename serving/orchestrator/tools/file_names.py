"""Names under which a client's files stand in a program's working folder."""

import re
from collections.abc import Iterable

MOST_NAME_BYTES = 120  # of UTF-8; a file system allows 255
_ODD = re.compile(r"[^\w.,()+@ -]")  # what a path, a shell or a chat template could read as more than a name


def plain_names(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Ids by plain names, of (id, the client's name): without folders, and each name once."""
    found: dict[str, str] = {}
    for file_id, given in named:
        stem, dot, ending = _plain(given, file_id).rpartition(".")
        if not stem:  # without an ending, or hidden
            stem, dot, ending = dot + ending, "", ""
        name, number = f"{stem}{dot}{ending}", 1
        while name in found:
            number += 1
            name = f"{stem}-{number}{dot}{ending}"
        found[name] = file_id
    return found


def _plain(given: str, file_id: str) -> str:
    name = _ODD.sub("_", re.split(r"[/\\]", given)[-1]).strip()
    if not name.strip("._"):
        return file_id
    ending = name[-16:] if "." in name[-16:] else ""
    stem = name.removesuffix(ending)
    while len(f"{stem}{ending}".encode()) > MOST_NAME_BYTES and stem:
        stem = stem[:-1]
    return f"{stem}{ending}" if len(ending.encode()) <= MOST_NAME_BYTES else file_id
