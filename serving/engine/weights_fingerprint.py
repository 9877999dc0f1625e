"""A short name for the weights in a folder: equal for copies on other machines, another one for other weights.

Reading every byte of a large checkpoint would take minutes. What is read of each file is its size and blocks spread
evenly over it (all of it where it is small), which differ as soon as training has touched a good part of the weights.
"""

from hashlib import blake2b
from pathlib import Path

_BLOCK = 4096  # bytes
_BLOCKS = 4096  # of a file, at most: 16 MiB
_NAME_BYTES = 6
_SUFFIXES = (".safetensors", ".bin", ".json")
_BESIDE_WEIGHTS = ("tokenizer", "special_tokens", "vocab", "chat_template", "generation_config")


def weights_fingerprint(folder: Path) -> str:
    """`fp_` and twelve hexadecimal digits. Raises OSError."""
    digest = blake2b(digest_size=_NAME_BYTES)
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SUFFIXES and not path.name.startswith(_BESIDE_WEIGHTS) and path.is_file():
            _add_file(digest, path, path.relative_to(folder).as_posix())
    return f"fp_{digest.hexdigest()}"


def _add_file(digest: blake2b, path: Path, name: str) -> None:
    size = path.stat().st_size
    digest.update(f"{name}\0{size}\0".encode())
    stride = max(_BLOCK, size // _BLOCKS)
    with path.open("rb") as file:
        for at in range(0, size, stride):
            file.seek(at)
            digest.update(file.read(_BLOCK))
