"""The API process as a real process, before, with and after an engine."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import httpx
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from serving.child_process import ChildProcess
from serving.cli import main
from serving.commands.api import url_of
from serving.engine.server import EngineServer
from serving.lifeline import Status
from serving.supervisor import EXIT_SETUP
from tests.fakes.mortal_engine import MortalEngine

PATIENCE = 180.0  # seconds; only a broken test waits that long


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What the API process reads of a model: no weights."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256, "vocab_size": 256}))
    return folder


async def test_it_is_live_at_once_ready_with_an_engine_and_refuses_before(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "private" / "engine.sock"
    statuses: asyncio.Queue[Status] = asyncio.Queue()
    lines: list[str] = []
    command = [sys.executable, "-m", "serving", "api", f"--model={checkpoint}", "--port=0", f"--socket={path}"]
    command.append("--log-format=json")
    child = await ChildProcess.start(command, lines.append, statuses.put_nowait)
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
    try:
        async with asyncio.timeout(PATIENCE):
            status = await statuses.get()
            assert status.ready, lines
            async with httpx.AsyncClient(base_url=status.url) as http:
                assert (await http.get("/health/live")).status_code == 200
                assert (await http.get("/health/ready")).status_code == 503
                refused = await http.post("/v1/completions", json=body)
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                assert str(path) not in refused.text
                server = EngineServer(MortalEngine(), path)
                await server.start()
                while (await http.get("/health/ready")).status_code != 200:
                    continue  # gRPC's own backoff, a quarter of a second at most
                answered = await http.post("/v1/completions", json=body)
                assert answered.json()["usage"]["completion_tokens"] == 4
                await server.stop()
                assert (await http.get("/health/live")).status_code == 200
            child.terminate()
            await child.wait()
            assert "request" in [json.loads(line)["event"] for line in lines]
    finally:
        child.kill()
        await child.wait()


def test_a_taken_port_is_said_with_the_code_for_it(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["api", "--model", str(checkpoint), "--port", str(port), "--socket", "unused"])
    assert code == EXIT_SETUP
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("box", "http://box:80"),
    ],
)
def test_the_url_is_one_that_can_be_opened(host: str, url: str) -> None:
    assert url_of(host, 80) == url
