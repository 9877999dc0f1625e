"""API keys, in the database that a deployment's auth.keys names: create, list, rotate, revoke.

A key is shown once, when it is made. A server that runs sees every change with the next request.
"""

import argparse
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from serving.access import NAME
from serving.errors import ConfigError, SetupError
from serving.gateway.key_store import KeyRecord, KeyStore
from serving.gateway.principal import ANONYMOUS, Scope

_PERIOD = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_OVERLAP = 86_400.0
_COLUMNS = ("id", "tenant", "name", "scopes", "created", "expires", "state")


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database", type=Path, required=True, metavar="FILE", help="what auth.keys names")
    verbs = parser.add_subparsers(required=True, metavar="{create,list,rotate,revoke,disable,enable}")
    create = verbs.add_parser("create", help="a new key; it is shown once")
    create.add_argument(
        "--tenant", required=True, type=_tenant, metavar="NAME", help="whose limits and usage it shares"
    )
    create.add_argument("--name", default="", metavar="TEXT", help="to tell keys apart")
    create.add_argument(
        "--scope", action="append", choices=[scope.value for scope in Scope], help="may be repeated; default: inference"
    )
    create.add_argument("--expires", type=period, metavar="PERIOD", help="such as 90d, 12h; default: never")
    create.set_defaults(verb=_create)
    verbs.add_parser("list", help="all keys, without their secrets").set_defaults(verb=_list)
    rotate = _on_key(verbs, "rotate", "a new secret; the old one stays good for a while", _rotate)
    rotate.add_argument("--overlap", type=period, default=_OVERLAP, metavar="PERIOD", help="default: 1d")
    _on_key(verbs, "revoke", "for good", lambda store, args: _say(store.revoke(args.id), args.id, "revoked"))
    _on_key(
        verbs, "disable", "until it is enabled", lambda s, args: _say(s.disable(args.id, disabled=True), args.id, "off")
    )
    _on_key(verbs, "enable", "again", lambda s, args: _say(s.disable(args.id, disabled=False), args.id, "on"))


def run(args: argparse.Namespace) -> int:
    if args.verb is not _create and not args.database.is_file():
        raise SetupError(f"{args.database}: there is no such database of keys", param="database")
    try:
        store = KeyStore(args.database)
    except ConfigError as error:
        raise SetupError(error.message, param="database") from error
    try:
        args.verb(store, args)
    except sqlite3.Error as error:
        raise SetupError(f"{args.database}: {error}", param="database") from error
    finally:
        store.close()
    return 0


def period(text: str) -> float:
    """Seconds of `90d`, `12h`, `30m`, `45s`."""
    found = _PERIOD.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no period such as 90d, 12h, 30m, 45s")
    return float(int(found[1]) * _SECONDS[found[2]])


def _tenant(text: str) -> str:
    if not NAME.fullmatch(text) or text == ANONYMOUS:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a tenant: letters, digits and _ . @ -")
    return text


def _on_key(verbs: argparse._SubParsersAction, name: str, text: str, verb: Callable) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("id", help="the key's id: what stands between weft_ and the secret")
    parser.set_defaults(verb=verb)
    return parser


def _create(store: KeyStore, args: argparse.Namespace) -> None:
    scopes = [Scope(word) for word in args.scope or [Scope.INFERENCE]]
    expires = None if args.expires is None else time.time() + args.expires
    print(store.create(args.tenant, scopes, name=args.name, expires=expires).text)


def _rotate(store: KeyStore, args: argparse.Namespace) -> None:
    print(store.rotate(args.id, overlap_seconds=args.overlap).text)


def _say(_: None, key_id: str, done: str) -> None:
    print(f"{key_id} {done}")


def _list(store: KeyStore, _: argparse.Namespace) -> None:
    """A table for eyes; elsewhere whole fields with tabs between them, as a table has the width of a terminal."""
    rows = [_row(record) for record in store.records()]
    console = Console(highlight=False)
    if not console.is_terminal:
        for row in (_COLUMNS, *rows):
            print("\t".join(" ".join(field.split()) for field in row))
        return
    table = Table(Column(_COLUMNS[0], no_wrap=True, min_width=12), *_COLUMNS[1:])
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _row(record: KeyRecord) -> tuple[str, ...]:
    scopes = " ".join(sorted(scope.value for scope in record.scopes))
    times = (_day(record.created), _day(record.expires))
    return (record.id, record.tenant, record.name, scopes, *times, _state(record))


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _state(record: KeyRecord) -> str:
    now = time.time()
    if record.disabled:
        return "off"
    if record.is_expired(now):
        return "expired"
    return "two secrets" if (record.rotating_until or 0.0) > now else "on"
