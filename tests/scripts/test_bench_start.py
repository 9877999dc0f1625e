"""The bench of starts, around a program that only says what a server would."""

import json
import sys
from pathlib import Path

import pytest

from scripts import bench_start
from serving.errors import ConfigError, EngineUnavailableError

SERVER = """
import http.server, json, os, pathlib, signal, sys, threading

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health/ready" else 404)
        self.end_headers()

    def log_message(self, *args):
        pass

def say(event, **fields):
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)

cache = pathlib.Path.home() / ".cache" / "weft" / "compilation"
compiled = not cache.exists()
cache.mkdir(parents=True, exist_ok=True)
for number in range(5 if compiled else 0):
    (cache / f"{number}-cache").touch()
server = http.server.HTTPServer(("127.0.0.1", 0), Ready)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
print("not JSON", file=sys.stderr)
say("the engine is ready", programs=4, seconds=1.5 if compiled else 0.5)
say("ready", url=f"http://127.0.0.1:{server.server_port}")
server.serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path


def test_each_run_has_an_empty_and_a_filled_cache_and_all_is_shown(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = model / "starts.json"
    bench_start.main(["--model", str(model), "--runs", "2", "--json", str(out)], [sys.executable, "-c", SERVER])
    record = json.loads(out.read_text())
    found = [(start["kind"], start["engine_seconds"], start["cache_entries_written"]) for start in record["starts"]]
    assert found == [("empty cache", 1.5, 5), ("filled cache", 0.5, 0)] * 2
    assert all(start["seconds"] > 0 and start["programs"] == 4 for start in record["starts"])
    shown = capsys.readouterr().out
    assert "empty cache" in shown
    assert "filled cache" in shown


def test_a_server_that_ends_is_told_with_its_last_lines(model: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="no such flag"):
        bench_start.main(["--model", str(model)], [sys.executable, "-c", "import sys; sys.exit('no such flag')"])


def test_a_deployment_with_a_cache_of_its_own_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('name = "own"\nmodel.checkpoint = "."\nengine.compilation_cache = "cache"\n')
    with pytest.raises(ConfigError, match="leave it out"):
        bench_start.main([str(file)])
