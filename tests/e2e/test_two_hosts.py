"""Two hosts on this machine hold one model together: `weft serve` and `weft follower`, each with one CPU device. Either
process may be killed at any time, and no client notices more than a pause."""

import json
import os
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

from tests.e2e.conftest import ROOT, STOP_SECONDS, ServedDemo, free_port
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

[cluster]
processes = 2
coordinator = "127.0.0.1:{port}"
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
    leader: ServedDemo
    follower: ServedDemo

    def kill(self, role: str) -> None:
        host = self.leader if role == "engine" else self.follower
        os.kill(host.child(role), signal.SIGKILL)

    def wait_until_ready_again(self) -> None:
        self.follower.wait_for("ready again")
        self.leader.wait_for("ready again")

    def whole(self) -> list[int]:
        reply = httpx.post(f"{self.leader.url}/v1/completions", json=BODY, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["token_ids"]

    def chunks(self) -> Iterator[dict[str, Any]]:
        body = {**BODY, "stream": True}
        with httpx.stream("POST", f"{self.leader.url}/v1/completions", json=body, timeout=PATIENCE) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))


def start(command: str, folder: Path, *flags: str) -> ServedDemo:
    process = subprocess.Popen(
        [sys.executable, "-m", "serving", command, str(folder / "tiny.toml"), *flags],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "WEFT_CLUSTER_TOKEN": "of these tests alone",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiling is most of what a start takes
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    return ServedDemo(process, "")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("two-hosts")
    (folder / "checkpoint").mkdir()
    tiny_checkpoint.write(folder / "checkpoint", tiny_checkpoint.weights(CONFIG), CONFIG)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(ROOT / "configs" / "checkpoints" / "demo" / name, folder / "checkpoint")
    (folder / "tiny.toml").write_text(DEPLOYMENT.format(port=free_port()))
    port = free_port()
    both = Hosts(
        start("serve", folder, f"--port={port}", "--drain-seconds=5"),
        start("follower", folder, "--process-id=1", "--drain-seconds=5"),
    )
    both.leader.url = f"http://127.0.0.1:{port}"
    try:
        both.leader.wait_for("ready at")
        yield both
    finally:
        both.leader.process.send_signal(signal.SIGTERM)
        ends = [host.process.communicate(timeout=STOP_SECONDS)[1] for host in (both.leader, both.follower)]
    assert [host.process.returncode for host in (both.leader, both.follower)] == [0, 0], "\n".join(ends)


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
    hosts.leader.wait_for("stream lost its engine")
    hosts.wait_until_ready_again()


@pytest.mark.parametrize("role", ["follow", "engine"])
def test_a_process_killed_while_nothing_runs_comes_back(role: str, hosts: Hosts, expected: list[int]) -> None:
    hosts.kill(role)
    hosts.wait_until_ready_again()
    assert hosts.whole() == expected
