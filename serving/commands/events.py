"""The event log, from the outbox that a deployment's events.outbox names: its last events, a copy of it as JSON lines,
and the JSON schema of each type of event."""

import argparse
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from serving.commands.argument_types import count, moment
from serving.errors import SetupError
from serving.events.event import event_schemas
from serving.events.event_types import EVENT_TYPES
from serving.events.export import export_events
from serving.events.outbox import Entry, Outbox, Wish

_LOOK_SECONDS = 0.5  # between looks for new ones
_MOST_AT_ONCE = 1000


def add_parser(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="{tail,export,schema}")
    tail = _verb(verbs, "tail", _tail, "the last events, and those to come")
    tail.add_argument("--follow", action="store_true", help="go on with new ones until interrupted")
    tail.add_argument("--since", type=moment, metavar="DATE", help="such as 2026-11-01 or 2026-11-01T12:00 (UTC)")
    tail.add_argument("--last", type=count, default=20, metavar="N", help="without --since: so many (default: 20)")
    tail.add_argument("--type", type=_kind, metavar="TYPE", help="such as request.ended, or tool")
    tail.add_argument("--json", action="store_true", help="whole events, as JSON lines")
    export = _verb(verbs, "export", _export, "write what is new into a file of JSON lines")
    export.add_argument("--to", type=Path, required=True, metavar="FILE", help="a later run goes on with it")
    schema = verbs.add_parser("schema", help="print the JSON schema of each type, or of one", allow_abbrev=False)
    schema.add_argument("type", nargs="?", type=_kind, help="such as request.ended")
    schema.set_defaults(verb=_schema)


def run(args: argparse.Namespace) -> int:
    args.verb(args)
    return 0


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    does: Callable[[argparse.Namespace], None],
    text: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, allow_abbrev=False)
    parser.add_argument("--outbox", type=Path, required=True, metavar="FILE", help="what events.outbox names")
    parser.set_defaults(verb=does)
    return parser


def _kind(text: str) -> str:
    """A type's name or its beginning; "weft." may be left out."""
    name = text if text.startswith("weft.") else f"weft.{text}"
    if not any(f"{kind.type}.".startswith(f"{name}.") for kind in EVENT_TYPES):
        known = ", ".join(kind.type.removeprefix("weft.").rpartition(".")[0] for kind in EVENT_TYPES)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return name


def _opened(path: Path) -> Outbox:
    if not path.is_file():
        raise SetupError(f"{path}: there is no such outbox", param="outbox")
    return Outbox(path)


def _tail(args: argparse.Namespace) -> None:
    outbox = _opened(args.outbox)
    shown = _whole if args.json else _line
    wish = Wish(type=args.type or "", since=args.since or 0.0)
    position = 0
    if args.since is None:
        for entry in outbox.last(args.last, wish):
            print(shown(entry), flush=True)
            position = entry.position
    while True:
        end = outbox.end
        entries = outbox.read(position, _MOST_AT_ONCE, wish)
        for entry in entries:
            print(shown(entry), flush=True)
            position = entry.position
        if not entries:
            position = max(position, end)  # what is not wanted need not be looked through again
            if not args.follow:
                return
            time.sleep(_LOOK_SECONDS)


def _whole(entry: Entry) -> str:
    return entry.event.decode()


def _line(entry: Entry) -> str:
    """As a line of the server's log."""
    event = msgspec.json.decode(entry.event)
    fields = "".join(f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in event["data"].items())
    subject = f" {event['subject']}" if "subject" in event else ""
    return f"{event['time']} {event['type']}{subject}{fields}"


def _export(args: argparse.Namespace) -> None:
    try:
        added = export_events(_opened(args.outbox), args.to)
    except (OSError, sqlite3.Error) as error:
        raise SetupError(f"{args.to}: {error}", param="to") from error
    print(f"{added} events added to {args.to}")


def _schema(args: argparse.Namespace) -> None:
    schemas = event_schemas()
    chosen = {name: schema for name, schema in schemas.items() if f"{name}.".startswith(f"{args.type or 'weft'}.")}
    print(json.dumps(next(iter(chosen.values())) if len(chosen) == 1 else chosen, indent=1))
