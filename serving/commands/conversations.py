"""What is kept of a tenant's or a user's conversations: prints all of it as JSON. A server may run. To erase it, and
what is kept elsewhere: weft erase."""

import argparse
import asyncio

import msgspec

from serving.commands.deployment_flags import path_of_deployment
from serving.config import load_deployment
from serving.errors import SetupError
from serving.sessions.conversations.conversations import Conversations


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("export",))
    parser.add_argument("deployment", help="a file, or the name of one in configs/deployments")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="where nobody needs a key: anonymous")
    parser.add_argument(
        "--user", metavar="ID", help="this one's alone, as safety_identifier or user of requests names it"
    )


def run(args: argparse.Namespace) -> int:
    config = load_deployment(path_of_deployment(args.deployment)).conversations
    if config.store == "sqlite" and (config.path is None or not config.path.is_file()):
        raise SetupError("this deployment keeps no conversations in a file, or has not kept any yet", param="path")
    from serving.app import build_conversation_store  # here: only some commands should wait for it

    async def work() -> None:
        conversations = Conversations(build_conversation_store(config))
        try:
            for tree in await conversations.export(args.tenant, args.user):
                print(msgspec.json.encode(tree).decode())
        finally:
            await conversations.store.close()

    asyncio.run(work())
    return 0
