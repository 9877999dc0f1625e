"""`weft bench serve` against a small server, from flags to files."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.cli import main

CHUNK = b'data: {"choices": [{"text": "x", "finish_reason": %s}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3}}\n\ndata: [DONE]\n\n'


class SmallServer:
    """Three tokens for every prompt, and HTTP 503 for each one that begins with `refuse`."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.connections = 0
        self.says = "too much"
        self.refuse: set[int] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            self.paths.append(head.split()[1].decode())
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.bodies.append(json.loads(await reader.readexactly(length)))
            if len(self.bodies) in self.refuse:
                body = json.dumps({"error": {"message": self.says}}).encode()
                writer.write(b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                continue
            body = CHUNK % b"null" + CHUNK % b"null" + CHUNK % b'"length"' + USAGE
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))


@contextmanager
def listening(server: SmallServer) -> Iterator[str]:
    """In a thread: the command has an event loop of its own."""
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listener.close()
        loop.close()


def test_flags_reach_the_requests_and_numbers_reach_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SmallServer()
    written, drawn = tmp_path / "run.json", tmp_path / "run.svg"
    with listening(server) as url:
        argv = f"bench serve --url {url} --model m --num-prompts 12 --input-len 16 --output-len 3 --warmups 2"
        more = f"--shared-prefix-len 4 --concurrency 3 --slo-ttft-ms 60000 --json {written} --picture {drawn}"
        assert main([*argv.split(), *more.split()]) == 0
    prompts = [body["prompt"] for body in server.bodies]
    assert [len(prompt) for prompt in prompts] == [20] * 14
    assert len({tuple(prompt[:4]) for prompt in prompts[2:]}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 14
    assert prompts[0][:4] != prompts[2][:4]
    summary = json.loads(written.read_text())["summary"]
    assert (summary["completed"], summary["output_tokens"], summary["prompt_tokens"]) == (12, 36, 240)
    assert summary["goodput_per_second"] == pytest.approx(summary["requests_per_second"])
    assert drawn.read_text().startswith("<svg")
    assert "12 of 12 requests" in capsys.readouterr().out


def test_failures_are_counted_and_shown_and_the_exit_code_tells(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer()
    server.refuse = {2, 5}
    with listening(server) as url:
        code = main(f"bench serve --url {url} --model m --num-prompts 6 --warmups 0 --rate 5000".split())
    assert code == 1
    shown = capsys.readouterr().out
    assert "4 of 6 requests" in shown
    assert "HTTP 503: too much" in shown


def test_a_failed_warm_up_ends_it_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer()
    server.refuse = {1}
    with listening(server) as url:
        assert main(f"bench serve --url {url} --model m --num-prompts 6 --warmups 1".split()) == 1
    assert len(server.bodies) == 1
    assert "warm-up request failed: HTTP 503: too much" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["bench serve --model m --url http://127.0.0.1:1 --picture", "bench offline demo --json"]
)
def test_a_file_that_could_not_be_written_is_refused_before_the_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.svg").mkdir()
    for path, says in ((tmp_path / "none" / "x.svg", "there is no directory"), (tmp_path / "d.svg", "is a directory")):
        with pytest.raises(SystemExit) as refused:
            main([*command.split(), str(path)])
        assert refused.value.code == 2
        assert says in capsys.readouterr().err


def test_a_range_of_token_ids_is_refused_beside_prompts_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "bench serve --url http://127.0.0.1:1 --model m --text-prompts --token-ids 5-9"
    assert main(argv.split()) == os.EX_CONFIG
    assert "--token-ids would have no effect" in capsys.readouterr().err


def test_warm_ups_are_open_at_once_as_the_run_is_and_no_more() -> None:
    server = SmallServer()
    with listening(server) as url:
        argv = f"bench serve --url {url} --model m --num-prompts 4 --warmups 20 --concurrency 2"
        assert main(argv.split()) == 0
    assert len(server.bodies) == 24
    assert server.connections == 2


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1_as_openais_clients_want_it(end: str) -> None:
    server = SmallServer()
    with listening(server) as url:
        assert main(f"bench serve --url {url}{end} --model m --num-prompts 1 --warmups 0".split()) == 0
    assert server.paths == ["/v1/completions"]


def test_what_a_server_says_of_a_failure_stays_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer()
    server.says, server.refuse = "no " * 100 + "end", {1}
    with listening(server) as url:
        assert main(f"bench serve --url {url} --model m --num-prompts 1 --warmups 0".split()) == 1
    assert f"HTTP 503: {server.says}" in capsys.readouterr().out.splitlines()


def test_a_full_disk_is_told_with_the_files_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full.svg").symlink_to("/dev/full")
    for flags, name in (("--json /dev/full", "/dev/full"), (f"--picture {tmp_path}/full.svg", f"{tmp_path}/full.svg")):
        server = SmallServer()
        with listening(server) as url:
            argv = f"bench serve --url {url} --model m --num-prompts 1 --warmups 0 {flags}"
            assert main(argv.split()) == os.EX_CONFIG
        assert f"weft: {name} could not be written: No space left on device" in capsys.readouterr().err


def test_one_file_for_both_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.svg").symlink_to(tmp_path / "a.svg")
    for picture in ("a.svg", "b.svg"):
        argv = f"bench serve --url http://127.0.0.1:1 --model m --json {tmp_path}/a.svg --picture {tmp_path}/{picture}"
        assert main(argv.split()) == os.EX_CONFIG
        assert "--json and --picture are both" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--model", "--extra-body"])
def test_bytes_that_are_no_text_are_refused_by_their_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([*"bench serve --url http://127.0.0.1:1 --model m".split(), flag, "\udcff"])
    assert refused.value.code == 2
    assert f"argument {flag}: must be UTF-8, not '\\udcff'" in capsys.readouterr().err
