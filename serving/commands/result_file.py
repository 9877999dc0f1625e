"""The files that a benchmark leaves."""

from pathlib import Path

from serving.errors import SetupError


def write_result(path: Path, result: bytes) -> None:
    """Raises SetupError: the disk may have filled up since the flag was checked."""
    try:
        path.write_bytes(result)
    except OSError as error:
        raise SetupError(f"{path} could not be written: {error.strerror or error}") from error
