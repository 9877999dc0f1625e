"""Where compiled programs are kept for later starts."""

import logging
import tempfile
from pathlib import Path

from serving.errors import ConfigError
from serving.observability.logs import log_event

logger = logging.getLogger(__name__)


def program_folder(named: Path | None, *, writes: bool) -> Path | None:
    """`named`, else ~/.cache/weft/compilation. `writes`: this process does; on several hosts one does for all.

    One that cannot be written still serves the programs that it holds, as a container's image may. One that holds none
    either is no cache, of which JAX would only warn, program by program. Raises ConfigError where such a one is named;
    where it is the default it is logged, and there is None.
    """
    try:
        folder = named or Path.home() / ".cache" / "weft" / "compilation"
    except RuntimeError as error:  # an account without a home
        return _none(str(error))
    fault = _fault(folder) if writes else None
    if fault is None:
        return folder
    if _holds_programs(folder):
        log_event(logger, "new compiled programs are not kept", level=logging.WARNING, folder=str(folder), why=fault)
        return folder
    if named is None:
        return _none(fault)
    raise ConfigError(
        f"engine.compilation_cache: {named} cannot be written ({fault}), so that each start would compile all "
        "programs anew: name a folder that this server may write",
        param="engine.compilation_cache",
    )


def _fault(folder: Path) -> str | None:
    """Why it cannot be written. It is tried: root may do what a read-only disk does not do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _holds_programs(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _none(why: str) -> None:
    log_event(logger, "compiled programs are not kept: each start takes longer", level=logging.WARNING, why=why)
