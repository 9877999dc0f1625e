"""The checks in `eight_devices/`, each in a process that has eight CPU devices: this one keeps the one that it has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "eight_devices"
XLA_FLAGS = "--xla_force_host_platform_device_count=8"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*_checks.py")))
def test_on_eight_devices(name: str) -> None:
    environment = os.environ | {"XLA_FLAGS": XLA_FLAGS, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
