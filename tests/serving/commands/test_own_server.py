"""A server for one command."""

import io
import sys

import httpx
import pytest
from rich.console import Console

from serving.commands.own_server import own_server
from serving.errors import EngineUnavailableError, SetupError

HOST = "127.0.0.2"  # this machine's too, but not what 127.0.0.1 answers to
SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())

http.server.HTTPServer(("127.0.0.2", int(sys.argv[2].removeprefix("--port="))), Handler).serve_forever()
"""


def test_it_is_ready_inside_and_gone_outside() -> None:
    console = Console(file=io.StringIO())
    with own_server(["--model=m"], HOST, console, [sys.executable, "-c", SERVER]) as url:
        assert HOST in url
        assert httpx.get(url).text == "--model=m"
    with pytest.raises(httpx.TransportError):
        httpx.get(url)


def test_one_that_does_not_start_shows_its_last_words() -> None:
    program = [sys.executable, "-c", "print('no such model'); exit(78)"]
    with pytest.raises(EngineUnavailableError, match="no such model"), own_server([], HOST, Console(), program):
        pass


def test_a_host_that_is_not_this_machines_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match=r"cannot listen on 192\.0\.2\.1"), own_server([], "192.0.2.1", Console()):
        pass
