"""Where the engine processes of one server listen: a Unix socket for each model."""

from pathlib import Path


def socket_of(first: Path, number: int) -> Path:
    """That of the deployment's model `number`, beside that of its first, which is 0."""
    return first if number == 0 else first.with_name(f"{first.stem}-{number}{first.suffix}")
