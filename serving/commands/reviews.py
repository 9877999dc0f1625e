"""What policies have routed to a person, of a server that runs: list it, read it, say whether the policy was right.

The key is one with the scope admin, in WEFT_API_KEY.
"""

import argparse
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from serving.commands.admin_client import AdminClient, add_admin_flags
from serving.commands.api_key_flag import API_KEY_VARIABLE
from serving.commands.argument_types import count

_PAGE = 100  # records of one request
_EXCERPT_SHOWN = 60  # characters in a list
_PATH = "/admin/reviews"


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_admin_flags(parser)
    verbs = parser.add_subparsers(required=True, metavar="{list,show,done}", dest="verb")
    listing = verbs.add_parser("list", help="the newest first: id, time, tenant, direction, category, score, text")
    listing.add_argument("--category", metavar="NAME", help="this one alone")
    listing.add_argument("--tenant", metavar="NAME", help="this one alone")
    state = listing.add_mutually_exclusive_group()
    state.add_argument("--done", action="store_true", help="those with a verdict; default: those that wait")
    state.add_argument("--all", action="store_true", help="both")
    listing.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")
    show = verbs.add_parser("show", help="one, with its text")
    show.add_argument("id")
    done = verbs.add_parser("done", help="give the verdict: was the policy right to point at it")
    done.add_argument("id")
    done.add_argument("verdict", choices=("right", "wrong"), help="wrong: a false positive")
    done.add_argument("--note", metavar="TEXT", help="why")


def run(args: argparse.Namespace) -> int:
    """Raises WeftError with what the server says against it."""
    with AdminClient(args.url, os.environ.get(API_KEY_VARIABLE)) as client:
        if args.verb == "list":
            for record in _listed(client, args):
                print(_line(record))
            return 0
        path = f"{_PATH}/{quote(args.id)}"
        if args.verb == "show":
            print("\n".join(_paragraph(client.get(path))))
            return 0
        print(_line(client.post(path, {"verdict": args.verdict, "note": args.note})))
    return 0


def _listed(client: AdminClient, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    wanted = {"category": args.category, "tenant": args.tenant}
    if not args.all:
        wanted["done"] = "true" if args.done else "false"
    left, after = args.limit, None
    while left:
        query = {**wanted, "after": after, "limit": min(left, _PAGE)}
        page = client.get(f"{_PATH}?{urlencode({name: value for name, value in query.items() if value is not None})}")
        yield from page["data"]
        left, after = left - len(page["data"]), page["last_id"]
        if not page["has_more"]:
            return


def _line(record: dict[str, Any]) -> str:
    """One line, whatever control characters stand in the text."""
    text = record["excerpt"][-_EXCERPT_SHOWN:]
    state = (record["verdict"] or "undecided") if record["done"] else "waiting"
    facts = (
        record["id"],
        _moment(record["at"]),
        record["tenant"],
        record["direction"],
        f"{record['category']}={record['score']:.2f}",
        state,
        repr(text),
    )
    return "  ".join(facts)


def _paragraph(record: dict[str, Any]) -> Iterator[str]:
    for name, value in record.items():
        if value is not None and name not in ("object", "excerpt"):
            yield f"{name}: {_moment(value) if name in ('at', 'decided_at') else _printable(str(value))}"
    yield ""
    yield from (_printable(line) for line in record["excerpt"].splitlines())


def _printable(text: str) -> str:
    """A stranger's text must not steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
