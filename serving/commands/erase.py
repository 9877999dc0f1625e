"""Erases what is kept of a tenant, or of one of its users: conversations, memory, files, containers, vector stores,
batches, durable streams, records for review, events. A server may run; what its processes hold in memory (the semantic
cache, responses that are made in the background) is erased by a restart, or by POST /admin/erase of the admin
listener."""

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from serving.commands.deployment_flags import path_of_deployment
from serving.config import load_deployment
from serving.sessions.erasure import Erased, erase_everywhere


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("deployment", help="a file, or the name of one in configs/deployments")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="where nobody needs a key: anonymous")
    parser.add_argument(
        "--user", metavar="ID", help="this one's alone, as safety_identifier or user of requests names it"
    )
    parser.add_argument("--dry-run", action="store_true", help="says what there is, and erases nothing")


def run(args: argparse.Namespace) -> int:
    found = asyncio.run(_erased(path_of_deployment(args.deployment), args.tenant, args.user, args.dry_run))
    for one in found:
        print(_line(one))
    return 0 if args.dry_run or all(one.is_gone or one.found for one in found) else 1


async def _erased(path: Path, tenant: str, user: str | None, dry_run: bool) -> list[Erased]:
    from serving.commands.kept_data import open_kept_data  # here: only some commands should wait for it

    async with AsyncExitStack() as opened:
        kept = open_kept_data(load_deployment(path), opened)
        return await erase_everywhere(kept.holders, tenant, user, dry_run=dry_run)


def _line(one: Erased) -> str:
    counts = ", ".join(f"{number} {what}" for what, number in one.found.items())
    outcome = "erased" if one.is_gone else f"not erased: {one.left}"
    return f"{one.holder}: {counts or 'nothing known'}; {outcome}"
