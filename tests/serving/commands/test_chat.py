"""The terminal chat against a scripted HTTP server."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from serving.cli import main
from serving.commands.chat import Chat
from serving.commands.chat_client import ChatClient
from serving.errors import EngineUnavailableError, RequestError


class Server(httpx.BaseTransport):
    """Answers each chat with the next script: pieces of text, an exception to raise between them, or a status."""

    def __init__(self, *scripts: Any) -> None:
        self.scripts = list(scripts)
        self.bodies: list[dict[str, Any]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        self.bodies.append(json.loads(request.read()))
        script = self.scripts.pop(0)
        if isinstance(script, int):
            return httpx.Response(script, json={"error": {"message": f"status {script}"}})
        return httpx.Response(200, stream=Pieces(script))


class Pieces(httpx.SyncByteStream):
    def __init__(self, script: list[Any]) -> None:
        self.script = script

    def __iter__(self) -> Iterator[bytes]:
        yield b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
        for piece in self.script:
            if isinstance(piece, BaseException):
                raise piece
            chunk = piece if isinstance(piece, dict) else {"choices": [{"delta": {"content": piece}}]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


class Talk:
    def __init__(self, *scripts: Any, system: str | None = None) -> None:
        self.server = Server(*scripts)
        self.out = io.StringIO()
        client = ChatClient(httpx.Client(transport=self.server, base_url="http://weft"))
        self.chat = Chat(client, Console(file=self.out, width=200), system)

    def says(self, *lines: str) -> str:
        for line in lines:
            self.chat.take(line)
        return self.out.getvalue()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_a_conversation_goes_on_with_what_was_said() -> None:
    talk = Talk(["Hel", "lo"], ["Bye"])
    assert talk.says("hi", "so?") == "Hello\nBye\n"
    assert talk.server.bodies[1] == {
        "model": "m",
        "messages": [user("hi"), assistant("Hello"), user("so?")],
        "stream": True,
    }


def test_ctrl_c_keeps_what_came_so_far() -> None:
    talk = Talk(["Once ", KeyboardInterrupt()])
    assert talk.says("tell me") == "Once  [stopped]\n"
    assert talk.chat.messages == [user("tell me"), assistant("Once ")]


@pytest.mark.parametrize(
    ("script", "says"),
    [(503, "status 503"), (["x", {"error": {"message": "died"}}], "died"), (["x", httpx.ReadError("cut")], "cut")],
)
def test_a_failed_answer_takes_its_question_with_it(script: Any, says: str) -> None:
    talk = Talk(script, ["fine"])
    assert says in talk.says("hi")
    talk.says("again")
    assert talk.server.bodies[1]["messages"] == [user("again")]


def test_system_and_reset_begin_anew() -> None:
    talk = Talk(["a"], ["b"], ["c"], system="be kind")
    talk.says("1", "/system be brief", "2", "/reset", "3")
    assert [body["messages"] for body in talk.server.bodies] == [
        [{"role": "system", "content": system}, user(text)]
        for system, text in (("be kind", "1"), ("be brief", "2"), ("be brief", "3"))
    ]


def test_save_writes_the_conversation(tmp_path: Path) -> None:
    talk = Talk(["é"])
    path = tmp_path / "c.json"
    talk.says("hi", f"/save {path}")
    assert json.loads(path.read_text(encoding="utf-8")) == [user("hi"), assistant("é")]
    assert "No such file" in talk.says(f"/save {tmp_path}/none/c.json")


@pytest.mark.parametrize("line", ["/dance", "/system", "/save"])
def test_a_command_that_is_not_one_is_not_sent(line: str) -> None:
    talk = Talk()
    talk.says(line)
    assert talk.server.bodies == []
    assert line in talk.out.getvalue()


def test_control_characters_of_the_model_do_not_reach_the_terminal() -> None:
    shown = Talk(["a\x1b[2Jb\x9b\x07c\n[bold]d"]).says("hi")
    assert shown == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}c\n[bold]d\n"


def test_the_loop_ends_with_quit_or_the_end_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for lines in (["hi", "", "/quit"], ["hi"]):
        talk = Talk(["yes"])
        typed = iter(lines)

        def read(_: object, typed: Iterator[str] = typed) -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(talk.chat._console, "input", read)
        talk.chat.run()
        assert talk.out.getvalue().endswith("yes\n")


def test_a_server_that_cannot_be_reached_is_said_at_once() -> None:
    class Nobody(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

    client = ChatClient(httpx.Client(transport=Nobody(), base_url="http://weft"))
    with pytest.raises(EngineUnavailableError, match=r"no server can be reached at http://weft: refused"):
        client.model()


@pytest.mark.parametrize("body", [b"<html>", b'{"data": []}', b'{"object": "list"}', b"[]"])
def test_a_server_that_names_no_model_is_said_in_one_line(body: bytes) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    client = ChatClient(httpx.Client(transport=transport, base_url="http://weft"))
    with pytest.raises(RequestError, match="http://weft: the server there names no model"):
        client.model()


def test_bytes_that_are_no_text_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(["yes"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi \xff\n"), encoding="utf-8"))
    talk.chat.run()
    assert talk.server.bodies[0]["messages"] == [user("hi \N{REPLACEMENT CHARACTER}")]


@pytest.mark.parametrize(("script", "code"), [(["yes"], 0), (503, 1)])
def test_lines_from_a_pipe_that_are_not_answered_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, script: Any, code: int
) -> None:
    server, real = Server(script), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: real(**given, transport=server))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\n"), encoding="utf-8"))
    assert main(["chat", "--url", "http://weft"]) == code


@pytest.mark.parametrize("command", ["chat --url {}", "operate --url {} state", "bench serve --model m --url {}"])
@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://x:port", "http://[::1", "http://a b", "http://a..b"])
def test_a_url_that_is_none_is_refused_by_its_flag(command: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([word.format(url) for word in command.split()])
    assert refused.value.code == 2
    assert "argument --url: must be an address such as" in capsys.readouterr().err


def test_a_deployment_with_tls_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server of one's own would be asked over HTTP, and never be ready."""
    file = tmp_path / "d.toml"
    file.write_text('name = "d"\nmodel = {checkpoint = "."}\n[server.tls]\ncertificate = "c"\nkey = "k"\n')
    assert main(["chat", str(file)]) == 1
    assert "server.tls" in capsys.readouterr().err


def test_a_url_and_a_deployment_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "tiny", "--url", "http://x"]) == 1
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize("url", [[], ["--url", "http://127.0.0.1:1"]])
def test_flags_of_a_server_that_is_not_started_are_refused_by_name(
    url: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *url, "--served-model-name", "x", "--dtype", "float32"]) == os.EX_CONFIG
    said = capsys.readouterr().err
    assert "--served-model-name, --dtype" in said
    assert "no effect" in said


@pytest.mark.parametrize("flag", ["--system", "--served-model-name"])
def test_bytes_of_the_command_line_that_are_no_text_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["chat", flag, "\udcff"])
    assert refused.value.code == 2
    assert f"argument {flag}: must be UTF-8" in capsys.readouterr().err


def test_an_address_may_end_in_v1_as_openais_clients_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server, real = Server(["yes"]), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: real(**given, transport=server))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\n"), encoding="utf-8"))
    assert main(["chat", "--url", "http://weft/v1"]) == 0
    assert len(server.bodies) == 1
