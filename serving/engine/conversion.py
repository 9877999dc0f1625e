"""A checkpoint of the hub's, written anew in weft's own layout (see models/converted.py). Runs on the CPU."""

from collections.abc import Callable
from pathlib import Path

import jax

from models import checkpoint
from models.errors import CheckpointError as ModelCheckpointError
from serving.errors import CheckpointError
from serving.settings.model import Dtype


def convert_checkpoint(
    source: Path, target: Path, dtype: Dtype | None, progress: Callable[[int, int], None] | None = None
) -> None:
    """`progress` is told the bytes read and the bytes in all. Raises CheckpointError."""
    jax.config.update("jax_platforms", "cpu")
    try:
        checkpoint.convert(source, target, dtype, progress=progress)
    except ModelCheckpointError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:  # no such place, no right to write there, a full disk
        raise CheckpointError(f"{error.filename or target}: {error.strerror or error}") from error
