"""Two hosts hold one model together, `weft serve` and `weft follower`, each with one CPU device; the launcher starts
both on this machine. Either process may be killed at any time, and no client notices more than a pause."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ROOT, STOP_SECONDS, free_port
from tests.models import tiny_checkpoint

PATIENCE = 600.0  # seconds; only a broken test waits that long
TOKENS = 250
CONFIG = tiny_checkpoint.CONFIG | {
    "vocab_size": 1024,
    "num_hidden_layers": 1,
    "max_position_embeddings": 512,
    "eos_token_id": 7,
}
DEPLOYMENT = """
name = "tiny"

[model]
checkpoint = "checkpoint"

[mesh]
tensor = 2

[engine]
max_num_seqs = 1
max_num_batched_tokens = 1
num_pages = 32
compilation_cache = "compiled"
"""
BODY = {
    "model": "tiny",
    "prompt": "Tell me.",
    "max_tokens": TOKENS,
    "temperature": 1.0,
    "seed": 5,
    "ignore_eos": True,
    "return_token_ids": True,
}


@dataclass
class Hosts:
    """A launch of the deployment on two hosts: its log has a line's host before it."""

    launcher: "subprocess.Popen[str]"
    url: str
    logs: Path

    def kill(self, role: str) -> None:
        (pid,) = (pid for pid in descendants(self.launcher.pid) if role_of(pid) == role)
        os.kill(pid, signal.SIGKILL)

    def wait_for(self, *texts: str) -> None:
        """Reads the log until each of them was in a line, in any order. Fails where the log ends first."""
        assert self.launcher.stderr is not None
        missing, seen = set(texts), []
        for line in self.launcher.stderr:
            seen.append(line)
            missing -= {text for text in missing if re.search(text, line)}
            if not missing:
                return
        raise AssertionError(f"{missing} was not logged:\n{''.join(seen)}")

    def wait_until_ready_again(self) -> None:
        self.wait_for(r"local-0 \|.*ready again", r"local-1 \|.*ready again")

    def whole(self) -> list[int]:
        # Ready says the supervisor; the API process may still be on its way back to the engine's socket.
        while (reply := httpx.post(f"{self.url}/v1/completions", json=BODY, timeout=PATIENCE)).status_code == 503:
            continue
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["token_ids"]

    def chunks(self) -> Iterator[dict[str, Any]]:
        body = {**BODY, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=PATIENCE) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


def role_of(pid: int) -> str | None:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[3].decode() if words[1:3] == [b"-m", b"serving"] else None


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("two-hosts")
    (folder / "checkpoint").mkdir()
    tiny_checkpoint.write(folder / "checkpoint", tiny_checkpoint.weights(CONFIG), CONFIG)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(ROOT / "configs" / "checkpoints" / "demo" / name, folder / "checkpoint")
    (folder / "tiny.toml").write_text(DEPLOYMENT)
    port = free_port()
    flags = ("--kind=cpu", "--hosts=local,local", f"--python={sys.executable}", f"--logs={folder / 'logs'}")
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "scripts.launcher", *flags, f"--coordinator-port={free_port()}"),
            *(str(folder / "tiny.toml"), f"--port={port}", "--drain-seconds=5"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiling is most of what a start takes
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    both = Hosts(launcher, f"http://127.0.0.1:{port}", folder / "logs")
    try:
        both.wait_for(r"local-0 \|.*ready at", r"local-1 \|.*ready in")
        yield both
    finally:
        launcher.send_signal(signal.SIGINT)
        rest = launcher.communicate(timeout=STOP_SECONDS)[1]
    assert launcher.returncode == 0, rest


@pytest.fixture(scope="module")
def expected(hosts: Hosts) -> list[int]:
    tokens = hosts.whole()
    assert len(tokens) == TOKENS
    assert len(set(tokens)) > 50
    return tokens


@pytest.mark.parametrize("role", ["follow", "engine"])
def test_a_process_killed_in_the_middle_of_a_stream_costs_it_nothing(
    role: str, hosts: Hosts, expected: list[int]
) -> None:
    tokens: list[int] = []
    for number, chunk in enumerate(hosts.chunks()):
        if number == 3:
            hosts.kill(role)
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
    assert tokens == expected
    hosts.wait_for("stream lost its engine")
    hosts.wait_until_ready_again()


@pytest.mark.parametrize("role", ["follow", "engine"])
def test_a_process_killed_while_nothing_runs_comes_back(role: str, hosts: Hosts, expected: list[int]) -> None:
    hosts.kill(role)
    hosts.wait_until_ready_again()
    assert hosts.whole() == expected


def test_the_log_of_each_host_is_gathered_in_a_file(hosts: Hosts) -> None:
    (folder,) = hosts.logs.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["local-0.log", "local-1.log"]
    for path in folder.iterdir():
        assert "ready" in path.read_text()
