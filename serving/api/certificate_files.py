"""The server's certificate as its files have it now: it is renewed more often than a server is started."""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError
from serving.observability.logs import log_event, log_failure
from serving.settings.server import TlsConfig

LOOK_SECONDS = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: bytes  # PEM, with its chain
    key: bytes

    @contextmanager
    def on_disk(self) -> Iterator[tuple[Path, Path]]:
        """Where OpenSSL can read both, and nobody else; whoever renews may be writing the real files just now."""
        with tempfile.TemporaryDirectory(prefix="weft-tls-") as folder:
            certificate, key = Path(folder, "certificate"), Path(folder, "key")
            certificate.write_bytes(self.certificate)
            key.write_bytes(self.key)
            yield certificate, key


class CertificateFiles:
    def __init__(self, tls: TlsConfig) -> None:
        """What they hold now is in use. Raises OSError."""
        self._paths = (tls.certificate, tls.key)
        self._used = self._marks()
        self._told = ""

    def renewed(self) -> Pair | None:
        """Certificate and key, where both are other files than those in use and go together. Where they do not, one of
        them may still have to be written: that is logged, and the old ones stay."""
        try:
            marks = self._marks()
            if marks == self._used:
                return None
            pair = Pair(*(path.read_bytes() for path in self._paths))
            with pair.on_disk() as paths:
                load_chain(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), *paths)
        except (OSError, ConfigError) as error:
            self._tell(str(error))
            return None
        self._used, self._told = marks, ""
        log_event(logger, "certificate renewed", file=str(self._paths[0]))
        return pair

    def _tell(self, error: str) -> None:
        if error != self._told:
            log_event(logger, "certificate not renewed", level=logging.WARNING, error=error)
        self._told = error

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        """What changes with a file: its time, its size, which file it is."""
        found = (path.stat() for path in self._paths)
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)


async def keep_renewed(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Without end: connections to come are greeted with the newest certificate, those that are open go on."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        pair = await asyncio.to_thread(files.renewed)
        if pair is None:
            continue
        try:
            with pair.on_disk() as paths:
                load_chain(context, *paths)
        except OSError as error:
            log_failure(logger, "certificate not renewed", error)


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Raises ConfigError where the two do not go together, or are none; OSError."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"server.tls: the certificate or its key cannot be used: {error}", param="server.tls"
        ) from error


def _no_password() -> str:
    raise ConfigError(
        "server.tls.key is encrypted: leave it without a password, readable to the server's user alone",
        param="server.tls",
    )
