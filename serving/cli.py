"""The `weft` command. Each subcommand is a file in `commands/`; this one parses, dispatches, and prints errors."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from serving.errors import SetupError, WeftError
from serving.supervisor import EXIT_SETUP

_COMMANDS = {
    "serve": "serve a model over HTTP",
    "follower": "hold a part of a model that weft serve leads on another host",
    "chat": "chat in the terminal",
    "generate": "run a file of prompts, without a server",
    "bench": "measure a server or an engine",
    "eval": "measure a model on a text, alone or against another deployment of it",
    "convert": "write a checkpoint in weft's own layout",
    "keys": "create, list, rotate and revoke API keys",
    "usage": "what was used, by whom",
    "conversations": "print what is kept of a tenant's or a user's conversations",
    "erase": "erase what is kept of a tenant or a user, everywhere",
    "events": "the event log: its last events, a copy of it, the schema of each type",
    "reviews": "what moderation has routed to a person: list it, read it, give a verdict",
    "trace": "record the steps of a server that runs, and replay them elsewhere",
    "operate": "pause, sleep, wake, or other weights, of a server that runs",
    "plan": "compile for a machine that is not at hand: does it fit, how fast can it be",
}
_PROCESSES = ("engine", "api", "follow")  # what `serve` and `follower` start; not listed in the help

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. argparse ends the process with 2 for a flag that does not exist."""
    argv = sys.argv[1:] if argv is None else argv
    try:  # also around the imports of the command, which are most of a second
        args = build_parser(argv[0] if argv else None).parse_args(argv)
        code = args.run(args)
        sys.stdout.flush()  # here, where it may fail
        return code
    except BrokenPipeError:  # whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        return 0
    except SetupError as error:
        print(f"weft: {error.message}", file=sys.stderr)
        return EXIT_SETUP
    except WeftError as error:
        print(f"weft: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Only the chosen command's file is loaded, so that none waits for the imports of another."""
    parser = argparse.ArgumentParser(prog="weft", description="Serve open-weight language models.", allow_abbrev=False)
    listed = ",".join(_COMMANDS)
    commands = parser.add_subparsers(required=True, metavar=f"{{{listed}}}", title="commands")
    for name, summary in _COMMANDS.items():
        _complete(commands.add_parser(name, help=summary, allow_abbrev=False), name, chosen)
    for name in _PROCESSES:
        _complete(commands.add_parser(name, allow_abbrev=False), name, chosen)
    return parser


def _complete(parser: argparse.ArgumentParser, name: str, chosen: str | None) -> None:
    if name != chosen:
        return
    command = importlib.import_module(f"serving.commands.{name}")
    parser.description = command.__doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_parser(parser)
    parser.set_defaults(run=command.run)
