"""An outbox as a file of JSON lines, which a later run goes on with: each event once, wherever a run was cut off."""

import os
from pathlib import Path

import msgspec

from serving.errors import SetupError
from serving.events.outbox import Outbox

_MOST_AT_ONCE = 1000


class _Cursor(msgspec.Struct, kw_only=True):
    outbox: str  # its name
    position: int  # of the last event in the file
    bytes: int  # that the file has up to there


def export_events(outbox: Outbox, target: Path) -> int:
    """How many events were added. Beside the file stands FILE.cursor; what the file has beyond it is of a run that was
    cut off, and is written anew. Raises SetupError where the file or its cursor is not of this outbox; OSError,
    sqlite3.Error."""
    beside = target.with_name(f"{target.name}.cursor")
    cursor = _read(beside, target, outbox.name)
    added = 0
    with target.open("ab") as file:
        file.truncate(cursor.bytes)
        while entries := outbox.read(cursor.position, _MOST_AT_ONCE):
            lines = b"".join(entry.event + b"\n" for entry in entries)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            cursor.position, cursor.bytes = entries[-1].position, cursor.bytes + len(lines)
            _write(beside, cursor)
            added += len(entries)
    return added


def _read(beside: Path, target: Path, name: str) -> _Cursor:
    try:
        cursor = msgspec.json.decode(beside.read_bytes(), type=_Cursor)
    except FileNotFoundError:
        if target.exists() and target.stat().st_size:
            raise SetupError(f"{target} is there, and no {beside.name} that says how far it goes", param="to") from None
        return _Cursor(outbox=name, position=0, bytes=0)
    except msgspec.DecodeError as error:
        raise SetupError(f"{beside} is no cursor: {error}", param="to") from error
    if cursor.outbox != name:
        raise SetupError(f"{target} has events of another outbox: write into another file", param="to")
    if not target.exists() or target.stat().st_size < cursor.bytes:
        raise SetupError(f"{target} has less than {beside.name} says: write into another file", param="to")
    return cursor


def _write(beside: Path, cursor: _Cursor) -> None:
    made = beside.with_name(f"{beside.name}.new")
    with made.open("wb") as file:
        file.write(msgspec.json.encode(cursor))
        file.flush()
        os.fsync(file.fileno())
    made.replace(beside)
