"""Functions that Numba compiles, as addresses; what it made is kept for later starts beside XLA's compiled programs.

Numba takes seconds for a function. Its own cache is made of pickles, which are programs to whoever reads them; here the
object code that LLVM made is kept in an archive and loaded by LLVM. It is read only where the sources, the packages and
the processor are those that it was made with.
"""

import hashlib
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax
import llvmlite
import numba
from llvmlite import binding
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

logger = logging.getLogger(__name__)

FOLDER = "machine_code"  # within that of XLA's compiled programs
OBJECT, SYMBOL = "object", "symbol"  # the members of an archive


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A function of C, and what has to live for as long as it may be called."""

    address: int
    owner: Any


def machine_code(name: str, make: Callable[[], Any]) -> MachineCode:
    """The code of the numba.cfunc that `make` gives, compiled unless it was kept. `name` says all that the function
    depends on beside the sources of this package."""
    folder = _folder()
    if folder is None:
        made = make()
        return MachineCode(made.address, made)
    path = folder / FOLDER / f"{name}-{_fingerprint()}.zip"
    if (kept := _kept(path)) is not None:
        return kept
    made = make()
    _keep(path, made)
    return MachineCode(made.address, made)


def _folder() -> Path | None:
    """Where XLA's compiled programs are kept."""
    named = jax.config.values["jax_compilation_cache_dir"]
    return None if named is None else Path(named)


def _kept(path: Path) -> MachineCode | None:
    try:
        with zipfile.ZipFile(path) as archive:  # which checks what it reads
            code, symbol = archive.read(OBJECT), archive.read(SYMBOL).decode()
    except FileNotFoundError:
        return None
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        logger.warning("%s cannot be read (%s): its function is compiled anew", path, error)
        return None
    rtsys.initialize(cpu_target.target_context)  # the functions that code of Numba's calls
    # An engine of its own: functions that were compiled in different processes may have the same name.
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return MachineCode(engine.get_function_address(symbol), engine)


def _keep(path: Path, made: Any) -> None:
    """Other processes may read or write the same meanwhile: they see all of it or nothing."""
    *_, (code, _) = made._library.serialize_using_object_code()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                with zipfile.ZipFile(file, "w") as archive:
                    archive.writestr(OBJECT, code)
                    archive.writestr(SYMBOL, made.native_name)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        logger.warning("%s cannot be written (%s): the next start compiles its function again", path, error)


@cache
def _fingerprint() -> str:
    """Of all that is compiled, and of what compiles it for which processor."""
    found = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        found.update(source.read_bytes())
    processor = cast(Any, cpu_target.target_context).codegen().magic_tuple()  # and what of it LLVM may use
    found.update(repr((numba.__version__, llvmlite.__version__, processor)).encode())
    return found.hexdigest()[:32]
