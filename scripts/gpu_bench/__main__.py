"""Checks every kernel on this machine's Hopper GPU and times it beside what the GPU can do. See scripts/bench_gpu."""

import argparse
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.gpu_bench.report import Check, Note, Record, Recorder, as_json, read_records, table
from scripts.gpu_bench.scale import FULL, SMOKE, Scale

LIMIT_SECONDS = 575.0  # of all parts together
LAST_CHARACTERS = 1500


@dataclass(frozen=True)
class Part:
    module: str
    function: str
    seconds: float
    memory_fraction: float = 0.9  # of the device's, that JAX takes at once


PARTS = {
    "ceilings": Part("ceilings", "run", 40),
    "check-decode": Part("checks", "decode", 60),
    "check-prefill": Part("checks", "prefill", 60),
    "check-mixed": Part("checks", "mixed", 60),
    "check-grouped": Part("checks", "grouped", 40),
    "engine": Part("whole_steps", "run", 130),
    "decode": Part("attention_cases", "decode", 90),
    "prefill": Part("attention_cases", "prefill", 50),
    "mixed": Part("attention_cases", "mixed", 30),
    "grouped": Part("grouped_cases", "run", 50),
    "peers": Part("peers", "run", 40, 0.1),
    "command-buffers": Part("command_buffers", "run", 60, 0.1),
}


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 where a check failed or did not get to its end; 2 where there is no GPU to run on."""
    args = _parser().parse_args(argv)
    scale = SMOKE if args.smoke else FULL
    if args.child is not None:
        run_part(args.child, scale, args.records)
        return 0
    if not args.smoke and not _has_gpu():
        print("bench_gpu: JAX finds no NVIDIA GPU here; --smoke runs every part at toy sizes on a CPU", file=sys.stderr)
        return 2
    begin = time.monotonic()
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.part or PARTS:
            print(f"bench_gpu: {name}, {time.monotonic() - begin:.0f} s so far", file=sys.stderr, flush=True)
            path = Path(folder) / name
            path.touch()
            if args.smoke:
                run_part(name, scale, path)
                records += read_records(path)
                continue
            left = LIMIT_SECONDS - (time.monotonic() - begin)
            records += run_child(
                name, path, [sys.executable, "-m", "scripts.gpu_bench"], min(PARTS[name].seconds, left)
            )
    print(table(records))
    if args.json is not None:
        about = {"machine": platform.platform(), "python": platform.python_version(), "smoke": args.smoke}
        args.json.write_text(as_json(records, about), encoding="utf-8")
    return int(any(_is_failure(record) for record in records))


def run_part(name: str, scale: Scale, path: Path) -> None:
    """Runs a part here; what it raises becomes a note, so that the other parts go on."""
    part = PARTS[name]
    with path.open("a", encoding="utf-8") as file:
        out = Recorder(name, file)
        try:
            getattr(importlib.import_module(f"scripts.gpu_bench.{part.module}"), part.function)(scale, out)
        except Exception as error:
            last = traceback.format_exc()[-LAST_CHARACTERS:]
            out.note(f"{type(error).__name__}: {error}\n{last}", failed=True)


def run_child(name: str, path: Path, program: Sequence[str], seconds: float) -> list[Record]:
    """Runs a part in a process of its own, as a fault on the device ends the process. What was found before stays."""
    if seconds <= 0:
        return [Note(name, "not run: the time was up", failed=True)]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": str(PARTS[name].memory_fraction)}
    command = [*program, "--child", name, "--records", str(path)]
    fault = None
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            fault = f"ended with {done.returncode}: {done.stderr[-LAST_CHARACTERS:]}"
    except subprocess.TimeoutExpired:
        fault = f"cut off after {seconds:.0f} s; what is not above was not measured"
    records = read_records(path)
    return records if fault is None else [*records, Note(name, fault, failed=True)]


def _is_failure(record: Record) -> bool:
    if isinstance(record, Check):
        return not record.passed
    return isinstance(record, Note) and record.failed and record.part.startswith("check-")


def _has_gpu() -> bool:
    """Asked in another process, so that this one holds no memory of the device."""
    ask = "import sys, jax; sys.exit(jax.default_backend() != 'gpu')"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True, check=False).returncode == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_gpu", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="every part at toy sizes by the reference body, on a CPU")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; by default all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every record")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
