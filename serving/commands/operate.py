"""Operate an engine that runs, through its server's admin listener: pause, sleep, other weights.

The key is one with the scope admin, in WEFT_API_KEY.
"""

import argparse
import os
from typing import Any

from serving.commands.admin_client import AdminClient, add_admin_flags
from serving.commands.api_key_flag import API_KEY_VARIABLE


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_admin_flags(parser)
    verbs = parser.add_subparsers(required=True, metavar="{state,pause,resume,sleep,wake,weights}", dest="verb")
    verbs.add_parser("state", help="what the engine is doing, and with which weights")
    verbs.add_parser("pause", help="no step begins; open streams wait")
    verbs.add_parser("resume", help="steps begin again")
    sleep = verbs.add_parser("sleep", help="give the memory of pages and weights back")
    sleep.add_argument(
        "--weights",
        choices=("host", "none"),
        default="host",
        help="host: a copy stays in host memory; none: they are read again when it wakes; default: host",
    )
    verbs.add_parser("wake", help="take the memory back, and run")
    weights = verbs.add_parser("weights", help="serve other weights of the same form, without a restart")
    weights.add_argument("checkpoint", metavar="NAME", help="a folder inside of operations.checkpoints")


def run(args: argparse.Namespace) -> int:
    """Raises WeftError with what the server says against it."""
    body = {name: getattr(args, name) for name in ("weights", "checkpoint") if getattr(args, name, None) is not None}
    with AdminClient(args.url, os.environ.get(API_KEY_VARIABLE)) as client:
        facts = client.get("/v1/engine") if args.verb == "state" else client.post(f"/v1/engine/{args.verb}", body)
    print_facts(facts)
    return 0


def print_facts(facts: dict[str, Any]) -> None:
    print(", ".join(f"{name} {_shown(value)}" for name, value in facts.items() if value is not None))


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
