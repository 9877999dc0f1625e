"""Measures weft beside other CPU servers: same machine, same weights, same client, same run.

    python -m scripts.bench_peers PEERS_DIR [--runs 3] [--only weft,llama.cpp] [--json FILE]

PEERS_DIR holds what the peers need, each installed in its own place:

    models/tiny-llama/            a checkpoint in the hub's layout, float32
    gguf/tiny-llama-f32.gguf      the same, converted for llama.cpp
    llama/build/bin/llama-server
    vllm/bin/vllm                 vLLM's CPU build
    transformers/bin/transformers with its `serving` extra

One server runs at a time. Every round starts each server anew, so that a machine that slows down slows all of them; the
table has the median over rounds, and each peer as a ratio to weft.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.flags import flags_of

START_SECONDS = 300


@dataclass(frozen=True)
class Workload:
    name: str
    concurrency: int
    prompts: int
    input_len: int
    output_len: int
    shared_prefix: int = 0


WORKLOADS = (
    Workload("1 user, 128/128", 1, 4, 128, 128),
    Workload("8 users, 128/128", 8, 16, 128, 128),
    Workload("32 users, 128/128", 32, 64, 128, 128),
    Workload("32 users, 1,000 shared + 28/64", 32, 64, 28, 64, 1000),
)


@dataclass(frozen=True)
class Peer:
    name: str
    command: list[str]
    port: int
    model: str = "m"
    ready_path: str = "/health"
    environment: dict[str, str] = field(default_factory=dict)
    prompt_flag: str = "--token-ids=100-8000"
    output_flags: bool = False  # the output length must be forced through generation_config


def peers(directory: Path) -> list[Peer]:
    checkpoint = directory / "models" / "tiny-llama"
    weft = [sys.executable, "-m", "serving", "serve", f"--model={checkpoint}", "--served-model-name=m"]
    weft += ["--dtype=float32", "--port=8301", "--max-model-len=4096", "--max-num-seqs=32"]
    llama = [str(directory / "llama/build/bin/llama-server"), "-m", str(directory / "gguf/tiny-llama-f32.gguf")]
    llama += "--port 8302 --host 127.0.0.1 -t 2 -tb 2 -np 32 -kvu -c 40960 -fa auto --no-webui".split()
    vllm = [str(directory / "vllm/bin/vllm"), "serve", str(checkpoint), "--served-model-name", "m", "--port", "8303"]
    vllm += "--dtype float32 --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 2048".split()
    vllm += ["--enable-prefix-caching"]
    transformers = [str(directory / "transformers/bin/transformers"), "serve", "--continuous-batching"]
    transformers += ["--port", "8304", "--device", "cpu", "--dtype", "float32"]
    return [
        Peer("weft", weft, 8301, ready_path="/health/ready"),
        Peer("llama.cpp", llama, 8302),
        Peer(
            "vLLM CPU",
            vllm,
            8303,
            environment={
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": "0-1",
                "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
                "OMP_NUM_THREADS": "2",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
        ),
        Peer(
            "transformers",
            transformers,
            8304,
            model=str(checkpoint),
            environment={"HF_HUB_OFFLINE": "1"},
            prompt_flag="--text-prompts",
            output_flags=True,
        ),
    ]


@contextmanager
def running(peer: Peer, log: Path) -> Iterator[None]:
    """The peer's server, from ready to gone. Raises RuntimeError where it does not come up."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            peer.command, env={**os.environ, **peer.environment}, stdout=out, stderr=out, start_new_session=True
        )
        try:
            wait_ready(peer, process)
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_ready(peer: Peer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{peer.name} ended with {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{peer.port}{peer.ready_path}", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{peer.name} was not ready within {START_SECONDS} s")


def measure(peer: Peer, workload: Workload) -> dict[str, float]:
    """One run of `weft bench serve`. Raises RuntimeError where requests failed."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "serving", "bench", "serve", f"--url=http://127.0.0.1:{peer.port}"]
        command += [f"--model={peer.model}", f"--concurrency={workload.concurrency}"]
        command += [f"--num-prompts={workload.prompts}", f"--input-len={workload.input_len}"]
        command += [f"--output-len={workload.output_len}", f"--shared-prefix-len={workload.shared_prefix}"]
        command += [peer.prompt_flag, f"--json={result}"]
        if peer.output_flags:
            forced = {"max_new_tokens": workload.output_len, "min_new_tokens": workload.output_len, "do_sample": False}
            command += ["--extra-body", json.dumps({"generation_config": json.dumps(forced)})]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{peer.name}, {workload.name}: {done.stdout[-800:]}{done.stderr[-800:]}")
        summary = json.loads(result.read_text(encoding="utf-8"))["summary"]
    return {
        "tok/s": summary["output_tokens_per_second"],
        "TTFT p50 ms": summary["ttft"]["p50"],
        "ITL p50 ms": summary["itl"]["p50"],
    }


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    lines = ["| workload | server | tok/s | to weft | TTFT p50, ms | ITL p50, ms |", "|---|---|---|---|---|---|"]
    for workload in WORKLOADS:
        ours = None
        for name, runs in results.items():
            if not runs.get(workload.name):
                continue
            median = {key: statistics.median(run[key] for run in runs[workload.name]) for key in runs[workload.name][0]}
            ours = ours or median["tok/s"]
            lines.append(
                f"| {workload.name} | {name} | {median['tok/s']:,.0f} | {median['tok/s'] / ours:.2f} "
                f"| {median['TTFT p50 ms']:,.0f} | {median['ITL p50 ms']:.1f} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = flags_of(__doc__)
    parser.add_argument("directory", type=Path, metavar="PEERS_DIR")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="names of servers, with commas between")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    known = {peer.name: peer for peer in peers(args.directory.resolve())}
    names = args.only.split(",") if args.only else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--only {','.join(unknown)}: there is {', '.join(known)}")
    chosen = [known[name] for name in names]
    results: dict[str, dict[str, list[dict[str, float]]]] = {peer.name: {} for peer in chosen}
    with tempfile.TemporaryDirectory(prefix="weft-peers-") as logs:
        for round_number in range(args.runs):
            for peer in chosen:
                with running(peer, Path(logs) / f"{peer.name}.log"):
                    for workload in WORKLOADS:
                        found = measure(peer, workload)
                        results[peer.name].setdefault(workload.name, []).append(found)
                        print(f"round {round_number + 1}: {peer.name}, {workload.name}: {found}", flush=True)
    print(table(results))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
