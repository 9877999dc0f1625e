"""A chat in the terminal, with a running server, or with one that it starts itself.

/system TEXT  begins anew under this system message     /save FILE  writes the conversation as JSON
/reset        begins anew                                /quit       ends, as does Ctrl-D

Ctrl-C stops the answer. Where lines come from a file or a pipe, the exit code is 1 if one was not answered.
"""

import argparse
import io
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import httpx
import msgspec
from rich.console import Console

from serving.commands.argument_types import sendable, server_url
from serving.commands.bearer_key import BEARER_KEY_VARIABLE, key_headers
from serving.commands.chat_client import ChatClient
from serving.commands.deployment_flags import add_deployment_flags, deployment_arguments, deployment_from
from serving.commands.own_server import own_server
from serving.errors import RequestError, SetupError, WeftError

DEFAULT_URL = "http://127.0.0.1:8000"
# A model's text must not move the cursor, write the clipboard or rename the window: control characters become visible.
_SHOWN = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    parser.add_argument(
        "--url",
        type=server_url,
        help=f"of a running server, with or without /v1 (default: {DEFAULT_URL}, where nothing else is given); "
        f"{BEARER_KEY_VARIABLE} holds the key, where one is needed",
    )
    parser.add_argument("--system", type=sendable, metavar="TEXT", help="the system message")


def run(args: argparse.Namespace) -> int:
    console, headers = Console(highlight=False, soft_wrap=True), key_headers()
    if args.deployment is None and args.model is None:
        _refuse_deployment_flags(args)
        return _chat_at(args.url or DEFAULT_URL, headers, args.system, console)
    if args.url is not None:
        raise RequestError("give --url or a deployment, not both", param="url")
    server = deployment_from(args).server
    if server.tls is not None:
        raise RequestError(
            "a deployment with server.tls is not chatted with by itself: serve it, and give --url", param="url"
        )
    with own_server(deployment_arguments(args), server.host, console) as url:
        return _chat_at(url, headers, args.system, console, by_proxy=False)


def _refuse_deployment_flags(args: argparse.Namespace) -> None:
    """A server that already runs has its own. Raises SetupError."""
    if given := [argument.partition("=")[0] for argument in deployment_arguments(args)]:
        raise SetupError(
            f"{', '.join(given)} would have no effect on a server that already runs: give a deployment or --model DIR "
            "for one that weft chat starts itself, or leave that out",
            param=given[0].removeprefix("--").replace("-", "_"),
        )


def _chat_at(
    url: str, headers: Mapping[str, str], system: str | None, console: Console, *, by_proxy: bool = True
) -> int:
    """`by_proxy`: by the one that the environment names, if any."""
    timeout = httpx.Timeout(10, read=None)
    with httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=by_proxy) as http:
        chat = Chat(ChatClient(http), console, system)
        chat.run()
    return 1 if chat.failed and not sys.stdin.isatty() else 0


class Chat:
    """The conversation and its commands."""

    def __init__(self, client: ChatClient, console: Console, system: str | None = None) -> None:
        self.messages: list[dict[str, str]] = []
        self.failed = False  # a line was not answered, or not to its end
        self._client = client
        self._console = console
        self._reset(system)

    def run(self) -> None:
        """Until /quit or the end of the input. Raises WeftError where the server cannot be talked to at all."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # no JSON can carry bytes that are no text
        self._console.print(f"{self._client.model()}; /quit ends, /help says more", style="dim")
        while True:
            try:
                line = self._console.input("[bold green]> [/]").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._console.print()
                continue
            if line == "/quit":
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """One line that the user wrote."""
        command, _, rest = line.partition(" ")
        match command:
            case "/system" if rest.strip():
                self._reset(rest.strip())
                self._console.print("a new conversation, under this system message", style="dim")
            case "/reset":
                self._reset(self._system)
                self._console.print("a new conversation", style="dim")
            case "/save" if rest.strip():
                self._save(Path(rest.strip()).expanduser())
            case "/system" | "/save":
                self._console.print(f"{command} needs something behind it", style="red")
            case "/help":
                self._console.print(__doc__, style="dim")
            case _ if command.startswith("/"):
                self._console.print(f"there is no command {command}; /help lists them", style="red")
            case _:
                self._answer(line)

    def _reset(self, system: str | None) -> None:
        self._system = system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def _answer(self, text: str) -> None:
        """A stopped answer stays in the conversation as far as it came; a failed one takes the question with it."""
        asked = {"role": "user", "content": text}
        parts: list[str] = []
        try:
            with closing(self._client.stream([*self.messages, asked])) as stream:
                for part in stream:
                    parts.append(part)
                    self._console.print(part.translate(_SHOWN), end="", markup=False)
        except KeyboardInterrupt:
            self._console.print(" [stopped]", style="dim", markup=False, end="")
        except WeftError as error:
            self._console.print(f"\n{error.message}", style="red", markup=False)
            self.failed = True
            return
        self._console.print()
        self.messages += [asked, {"role": "assistant", "content": "".join(parts)}]

    def _save(self, path: Path) -> None:
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self.messages)) + b"\n")
        except OSError as error:
            self._console.print(f"{path}: {error.strerror}", style="red", markup=False)
        else:
            self._console.print(f"saved to {path}", style="dim", markup=False)
