"""A real `weft serve` of two models: an engine process each, and the smaller one in place of a killed one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ROOT, ServedDemo, serving

PATIENCE = 600.0  # seconds; only a broken test waits that long
CHECKPOINTS = ROOT / "configs" / "checkpoints"
FURTHER = f"""
[models.small.model]
checkpoint = "{CHECKPOINTS / "demo-draft"}"
dtype = "float32"

[models.small.engine]
max_num_seqs = 2
max_num_batched_tokens = 16
token_buckets = [16]
decode_rounds = 1
cache_bytes = 16_777_216

[routing.fallback]
weft-demo = "small"
"""
CHAT = {"messages": [{"role": "user", "content": "What is weft?"}], "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDemo]:
    """The demo, with the programs that other tests have compiled, and a smaller model beside it."""
    demo = (ROOT / "configs" / "deployments" / "demo.toml").read_text(encoding="utf-8")
    path: Path = tmp_path_factory.mktemp("models") / "d.toml"
    path.write_text(demo.replace("../checkpoints", str(CHECKPOINTS)) + FURTHER, encoding="utf-8")
    with serving(str(path), "--drain-seconds=5") as served:
        yield served


def _ask(served: ServedDemo, model: str, **fields: object) -> httpx.Response:
    body = {**CHAT, "model": model, **fields}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=PATIENCE)


def _states(served: ServedDemo) -> dict[str, str]:
    reply = httpx.get(f"{served.url}/health/ready", timeout=PATIENCE)
    assert reply.status_code == 200  # also while the larger one is away: the smaller stands in
    return reply.json()["models"]


def test_a_killed_engines_requests_go_to_the_smaller_model_with_a_notice_until_it_is_back(served: ServedDemo) -> None:
    before = {name: _ask(served, name).json() for name in ("weft-demo", "small")}
    assert {name: reply["model"] for name, reply in before.items()} == {"weft-demo": "weft-demo", "small": "small"}
    assert before["weft-demo"]["system_fingerprint"] != before["small"]["system_fingerprint"]

    os.kill(served.child("engine"), signal.SIGKILL)  # the first child of this role is the first model's
    while _states(served)["weft-demo"] == "ready":
        pass
    instead = _ask(served, "weft-demo")
    assert instead.json()["model"] == "small"
    assert instead.json()["choices"] == before["small"]["choices"]
    notice = {"asked": "weft-demo", "answered_by": "small", "reason": "engine_down"}
    assert instead.json()["fallback"] == notice
    assert instead.headers["weft-fallback"] == "small; asked=weft-demo; reason=engine_down"
    assert _ask(served, "weft-demo", fallback=False).status_code == 503

    served.wait_for("ready again")
    while (after := _ask(served, "weft-demo").json())["model"] != "weft-demo":
        pass
    assert "fallback" not in after
    assert after["choices"] == before["weft-demo"]["choices"]
