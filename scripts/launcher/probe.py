"""Runs on a host, in the environment that weft will have there: prints what the host has, as one JSON object.

It does not import JAX: that would take the devices.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

QUERY = ("driver_version", "name", "memory.total", "memory.free")  # of nvidia-smi, MiB
GPU_PACKAGES = ("jax-cuda13-plugin", "jax-cuda12-plugin")
VERSIONS = ("weft", "jax", "jaxlib", "libtpu", *GPU_PACKAGES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("gpu", "tpu", "cpu"), required=True)
    parser.add_argument("--ports", type=int, nargs="*", default=[], help="that must be free")
    parser.add_argument("--cache", type=Path, required=True, help="where compiled programs are kept")
    parser.add_argument("--mark", metavar="NAME", help="to leave there")
    parser.add_argument("--look-for", metavar="NAME", help="of another host, left there before")
    args = parser.parse_args()
    facts = {
        "versions": {"python": platform.python_version(), **_versions()},
        "address": _address(),
        "devices": {"gpu": _gpus, "tpu": _tpus, "cpu": _cpus}[args.kind](),
        "taken_ports": [port for port in args.ports if _taken(port)],
        "cache": _cache(args.cache.expanduser(), args.mark, args.look_for),
    }
    json.dump(facts, sys.stdout)
    return 0


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _address() -> str:
    """That of the network by which this host reaches others. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # kept for documentation: no such host
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def _gpus() -> dict[str, Any]:
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": f"nvidia-smi does not run: {error}"}
    if done.returncode:
        return {"problem": f"nvidia-smi: {(done.stderr or done.stdout).strip()}"}
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return {
        "driver": rows[0][0] if rows else None,
        "names": [row[1] for row in rows],
        "total": [int(row[2]) << 20 for row in rows],
        "free": [int(row[3]) << 20 for row in rows],
    }


def _tpus() -> dict[str, Any]:
    """The chips, and who holds them: a TPU has one process at a time."""
    chips = sorted(str(path) for path in (*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")))
    return {"names": ["tpu"] * len(chips), "held": _held(chips)}


def _held(files: list[str]) -> list[str]:
    held = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) in files:
                held.add(link.parts[2])
        except OSError:
            continue  # another user's, or gone
    return sorted(held)


def _cpus() -> dict[str, Any]:
    return {"names": ["cpu"] * int(os.environ.get("JAX_NUM_CPU_DEVICES", "1"))}


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def _cache(folder: Path, mark: str | None, look_for: str | None) -> dict[str, Any]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if mark:
            for old in folder.glob("launch-*"):
                old.unlink(missing_ok=True)
            (folder / mark).touch()
        found = look_for is not None and (folder / look_for).exists()
    except OSError as error:
        return {"problem": f"{folder}: {error.strerror or error}"}
    return {"found": found}


if __name__ == "__main__":
    sys.exit(main())
