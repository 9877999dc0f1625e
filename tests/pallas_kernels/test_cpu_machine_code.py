"""Machine code outlives the process that compiled it, and is trusted only where it is what that process wrote."""

import ctypes
import logging
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numba
import numpy as np
import pytest
from numba.core import types

from pallas_kernels.cpu import machine_code as module
from pallas_kernels.cpu.machine_code import FOLDER, MachineCode, machine_code

NAME = "sum_below"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / FOLDER
    jax.config.update("jax_compilation_cache_dir", before)


def sum_below() -> Any:
    @numba.cfunc(types.int64(types.int64))
    def compiled(count: int) -> int:
        return np.arange(count).sum()  # which allocates, as kernels do

    return compiled


def refuse() -> Any:
    raise AssertionError("this was to be read, not compiled")


def called(code: MachineCode, count: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address)(count)


def kept(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_was_compiled_is_read_the_next_time(folder: Path) -> None:
    assert called(machine_code(NAME, sum_below), 5) == 10
    assert called(machine_code(NAME, refuse), 6) == 15


def run(folder: Path, statement: str) -> str:
    """What a process that keeps its code there prints."""
    names = "called, machine_code, multiplied, refuse"
    program = (
        f"import jax, sys\nfrom tests.pallas_kernels.test_cpu_machine_code import {names}\n"
        f"jax.config.update('jax_compilation_cache_dir', sys.argv[1])\n{statement}\n"
    )
    command = [sys.executable, "-c", program, str(folder.parent)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_another_process_reads_it_without_compiling_anything(folder: Path) -> None:
    machine_code(NAME, sum_below)
    assert run(folder, f"print(called(machine_code('{NAME}', refuse), 100))").strip() == "4950"


def multiplied(factor: int) -> Any:
    @numba.cfunc(types.int64(types.int64))
    def compiled(number: int) -> int:
        return number * factor

    return compiled


def test_functions_that_two_processes_gave_one_name_are_kept_apart(folder: Path) -> None:
    for factor in (3, 5):
        run(folder, f"machine_code('times{factor}', lambda: multiplied({factor}))")
    symbols = set()
    for path in folder.iterdir():
        with zipfile.ZipFile(path) as archive:
            symbols.add(archive.read("symbol"))
    assert len(symbols) == 1
    assert [called(machine_code(f"times{factor}", refuse), 7) for factor in (3, 5)] == [21, 35]


def test_other_sources_have_code_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code(NAME, sum_below)
    monkeypatch.setattr(module, "_fingerprint", lambda: "other")
    with pytest.raises(AssertionError, match="not compiled"):
        machine_code(NAME, refuse)


@pytest.mark.parametrize("damage", ["cut short", "a byte changed", "emptied", "another archive"])
def test_what_is_damaged_is_compiled_anew_and_said(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    machine_code(NAME, sum_below)
    path = kept(folder)
    whole = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(whole[:-100])
    elif damage == "a byte changed":
        path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("something", b"else")
    with caplog.at_level(logging.WARNING):
        assert called(machine_code(NAME, sum_below), 4) == 6
    assert path.name in caplog.text
    assert called(machine_code(NAME, refuse), 4) == 6


def test_a_folder_that_cannot_be_written_costs_only_the_next_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        assert called(machine_code(NAME, sum_below), 4) == 6
    assert "cannot be written" in caplog.text


def test_without_a_folder_nothing_is_kept(folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", None)
    assert called(machine_code(NAME, sum_below), 4) == 6
    assert not folder.exists()
