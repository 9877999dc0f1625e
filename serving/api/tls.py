"""TLS of the HTTP listeners: what uvicorn is told, and whose certificate a client has shown."""

import ssl
from collections.abc import Mapping
from typing import Any

from serving.api.certificate_files import load_chain
from serving.errors import ConfigError
from serving.settings.server import TlsConfig

PEER_EXTENSION = "weft.certificate"  # in a scope's extensions: the common name of a verified client certificate


def tls_options(tls: TlsConfig | None) -> dict[str, Any]:
    """uvicorn's options. With `client_authority` a client without a certificate of that authority's is not heard.

    Raises ConfigError where the files cannot be used.
    """
    if tls is None:
        return {}
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        for path in (tls.certificate, tls.key, tls.client_authority):
            if path is not None:
                path.open("rb").close()  # its error names the file, OpenSSL's does not
        load_chain(context, tls.certificate, tls.key)
        if tls.client_authority is not None:
            context.load_verify_locations(tls.client_authority)
    except OSError as error:  # OpenSSL's too
        raise ConfigError(
            f"server.tls: the certificate, its key or the authority cannot be used: {error}", param="server.tls"
        ) from error
    return {
        "ssl_certfile": str(tls.certificate),
        "ssl_keyfile": str(tls.key),
        "ssl_ca_certs": None if tls.client_authority is None else str(tls.client_authority),
        "ssl_cert_reqs": ssl.CERT_NONE if tls.client_authority is None else ssl.CERT_REQUIRED,
    }


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Of a client certificate that was verified, as `SSLSocket.getpeercert` gives it; None without one."""
    names = [
        value
        for part in (certificate or {}).get("subject", ())
        for attribute, value in part
        if attribute == "commonName"
    ]
    return names[0] if len(names) == 1 else None
