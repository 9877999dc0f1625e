"""A server for one command."""

import io
import signal
import sys

import httpx
import pytest
from rich.console import Console

from serving.commands.own_server import _is_ready, own_server
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


def signalled(number: signal.Signals, found: list[str]) -> None:
    with own_server(["--model=m"], HOST, Console(file=io.StringIO()), [sys.executable, "-c", SERVER]) as url:
        found.append(url)
        assert signal.getsignal(number) is not signal.SIG_DFL  # else the next line would end the tests
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_command_ends_its_server_too(number: signal.Signals) -> None:
    found: list[str] = []
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            signalled(number, found)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ended.value.code == 128 + number
    with pytest.raises(httpx.TransportError):
        httpx.get(found[0])


def test_no_proxy_is_asked_for_a_server_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", SERVER]
    with own_server(["--model=m"], HOST, Console(file=io.StringIO()), program) as url:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert _is_ready(url)


def test_one_that_does_not_start_shows_its_last_words() -> None:
    program = [sys.executable, "-c", "print('no such model'); exit(78)"]
    with pytest.raises(EngineUnavailableError, match="no such model"), own_server([], HOST, Console(), program):
        pass


def test_a_host_that_is_not_this_machines_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match=r"cannot listen on 192\.0\.2\.1"), own_server([], "192.0.2.1", Console()):
        pass
