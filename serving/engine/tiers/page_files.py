"""Pages as files, which survive the process. One engine at a time owns the folder.

    FOLDER/lock
    FOLDER/FINGERPRINT/ab/abcdef....page     named by the digest of the page: 32 bytes, hexadecimal

A file is a header and the page's bytes; the header has a checksum over both. It is written beside its name and renamed,
so that a name never has half a page. It is not flushed to the medium: what a power cut leaves of it fails the checksum.
The fingerprint stands for everything that a page's bytes depend on beside its digest. Files under another one are
removed at the start, and so is what has another size than a page; what fails its checksum is removed when it is read.
Whatever else lies in the folder is left alone.
"""

import fcntl
import logging
import os
import re
import struct
from collections.abc import Sequence
from hashlib import blake2b
from io import FileIO
from pathlib import Path

from serving.errors import ConfigError

log = logging.getLogger(__name__)

FINGERPRINT_BYTES = 16
_HEADER = struct.Struct("<8sI16s32sQ32s")  # magic, version, fingerprint, digest, length, checksum
_MAGIC, _VERSION = b"weftpage", 1
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_BUCKET = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"([0-9a-f]{64})\.page")
_UNFINISHED = re.compile(r"[0-9a-f]{64}\.page\.new")


class PageFiles:
    """Pages of `page_bytes` under `fingerprint`. Methods may be called from several threads, for different pages."""

    def __init__(self, folder: Path, fingerprint: bytes, page_bytes: int) -> None:
        """Raises ConfigError where the folder cannot be had."""
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
        self.damaged = 0  # found at the start
        self.foreign = 0  # likewise
        self._fingerprint = fingerprint
        self._page_bytes = page_bytes
        self._folder = folder / fingerprint.hex()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"prefix_cache.disk: {folder} cannot be used: {error.strerror or error}", param="disk"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"prefix_cache.disk: another engine uses {folder}: each needs a folder of its own", param="disk"
            ) from error
        for path in folder.iterdir():
            if path != self._folder and path.is_dir() and _FINGERPRINT.fullmatch(path.name):
                self.foreign += _remove_pages(path)

    def close(self) -> None:
        os.close(self._lock)

    def scan(self) -> list[bytes]:
        """The digests of the pages that are there, last used last."""
        found: list[tuple[int, bytes]] = []
        for bucket in self._folder.iterdir():
            for path in bucket.iterdir() if bucket.is_dir() and _BUCKET.fullmatch(bucket.name) else ():
                name = _NAME.fullmatch(path.name)
                status = path.stat()
                if name and status.st_size == _HEADER.size + self._page_bytes:
                    found.append((status.st_mtime_ns, bytes.fromhex(name[1])))
                elif name or _UNFINISHED.fullmatch(path.name):
                    self.damaged += 1
                    path.unlink()
        return [digest for _, digest in sorted(found)]

    def write(self, digest: bytes, parts: Sequence[memoryview]) -> None:
        """Raises OSError."""
        path = self._path(digest)
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f"{path.name}.new")
        try:
            with unfinished.open("wb", buffering=0) as file:
                file.write(self._header(digest, parts))
                for part in parts:
                    _write_all(file.fileno(), part)
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def read(self, digest: bytes, parts: Sequence[memoryview]) -> bool:
        """Fills `parts`. False where the page is lost: there is no file, or it held something else and is removed."""
        path = self._path(digest)
        try:
            with path.open("rb", buffering=0) as file:
                header = file.read(_HEADER.size)
                whole = all(_read_all(file, part) for part in parts) and not file.read(1)
            if whole and header == self._header(digest, parts):
                os.utime(path)
                return True
            log.warning("%s does not hold what its name says, and is removed", path)
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error.strerror or error)
        return False

    def delete(self, digest: bytes) -> None:
        """Raises OSError."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / f"{name}.page"

    def _header(self, digest: bytes, parts: Sequence[memoryview]) -> bytes:
        checksum = blake2b(self._fingerprint + digest, digest_size=32)
        for part in parts:
            checksum.update(part)
        length = sum(part.nbytes for part in parts)
        return _HEADER.pack(_MAGIC, _VERSION, self._fingerprint, digest, length, checksum.digest())


def _remove_pages(folder: Path) -> int:
    """The page files of another fingerprint, and their folders where nothing else lies in them."""
    count = 0
    for bucket in [path for path in folder.iterdir() if path.is_dir() and _BUCKET.fullmatch(path.name)]:
        for path in bucket.iterdir():
            if _NAME.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name):
                path.unlink()
                count += 1
        if not any(bucket.iterdir()):
            bucket.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()
    return count


def _write_all(descriptor: int, part: memoryview) -> None:
    while part.nbytes:
        part = part[os.write(descriptor, part) :]


def _read_all(file: FileIO, part: memoryview) -> bool:
    while part.nbytes:
        count = file.readinto(part)
        if not count:
            return False
        part = part[count:]
    return True
