"""A folder that an operator names, of those inside of one that the deployment names."""

from pathlib import Path


def inner_folder(root: Path, name: str) -> Path | None:
    """None where `name` leads out of `root`, also by a link, is `root` itself, or can be the name of no file."""
    root = root.resolve()
    try:
        found = (root / name).resolve()
    except (ValueError, OSError, RuntimeError):  # a NUL in it; links that lead round, as older versions of Python say
        return None
    return found if found != root and found.is_relative_to(root) else None
