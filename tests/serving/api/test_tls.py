"""TLS on the public listener, and client certificates as principals."""

import datetime
import json
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect

from serving.access import AccessConfig, AuthConfig
from serving.api.tls import common_name, tls_options
from serving.errors import ConfigError
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.settings.server import TlsConfig
from tests.serving.api.conftest import ApiMaker, chat_body
from tests.serving.api.listening import listening


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        self.path = self._write("authority", self._signed("authority", self._key, authority=True), self._key)[0]

    def issue(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(name, self._signed(name, key, authority=False), key)

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        certificate, secret = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, secret


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def client_of(authority: Authority, shown: tuple[Path, Path] | None = None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=str(authority.path))
    if shown is not None:
        context.load_cert_chain(*shown)
    return httpx.AsyncClient(verify=context, timeout=120)


async def test_the_api_is_spoken_over_tls_and_not_in_the_clear(make_api: ApiMaker, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    api, tls = make_api(), TlsConfig(certificate=certificate, key=key)
    async with listening(api.app, tls=tls) as port, client_of(authority) as client:
        assert (await client.get(f"https://localhost:{port}/health/live")).status_code == 200
        with pytest.raises(httpx.HTTPError):
            await client.get(f"http://localhost:{port}/health/live")


async def test_with_an_authority_a_client_shows_a_certificate_and_is_who_it_says(
    make_api: ApiMaker, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("server")
    access = AccessConfig(auth=AuthConfig(certificates={"worker": "acme"}))
    api = make_api(make_api.says("x"), gateway=Gateway(access, identity=Identity(access)))
    tls = TlsConfig(certificate=certificate, key=key, client_authority=authority.path)
    async with listening(api.app, tls=tls) as port:
        url = f"https://localhost:{port}/v1/models"
        async with client_of(authority, authority.issue("worker")) as known:
            assert (await known.get(url)).status_code == 200
        context = ssl.create_default_context(cafile=str(authority.path))
        context.load_cert_chain(*authority.issue("worker"))
        async with connect(f"wss://localhost:{port}/v1/socket", ssl=context) as socket:
            await socket.send(json.dumps({"type": "chat.completions", "id": "a", "body": chat_body(stream=False)}))
            assert json.loads(await socket.recv())["type"] == "reply"
        async with client_of(authority, authority.issue("stranger")) as stranger:
            assert (await stranger.get(url)).status_code == 401
        other = Authority(tmp_path).issue("worker")
        for shown in (None, other):
            async with client_of(authority, shown) as nobody:
                with pytest.raises((httpx.HTTPError, ssl.SSLError)):
                    await nobody.get(url)


def test_files_that_cannot_be_used_end_the_start(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    (tmp_path / "broken").write_text("no certificate")
    for tls in (
        TlsConfig(certificate=tmp_path / "nowhere", key=key),
        TlsConfig(certificate=certificate, key=authority.issue("another")[1]),
        TlsConfig(certificate=certificate, key=key, client_authority=tmp_path / "broken"),
    ):
        with pytest.raises(ConfigError, match=r"server\.tls"):
            tls_options(tls)


def test_a_name_is_taken_only_where_there_is_one() -> None:
    assert common_name(None) is None
    assert common_name({"subject": ((("organizationName", "x"),), (("commonName", "a"),))}) == "a"
    assert common_name({"subject": ((("commonName", "a"),), (("commonName", "b"),))}) is None


@pytest.mark.parametrize("missing", ["certificate", "key", "client_authority"])
def test_a_file_that_is_not_there_is_named(authority: Authority, tmp_path: Path, missing: str) -> None:
    certificate, key = authority.issue("server")
    files = {"certificate": certificate, "key": key, "client_authority": authority.path}
    with pytest.raises(ConfigError, match=r"gone\.pem"):
        tls_options(TlsConfig(**files | {missing: tmp_path / "gone.pem"}))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    how = serialization.BestAvailableEncryption(b"opensesame")
    locked.write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    with pytest.raises(ConfigError, match="key is encrypted"):
        tls_options(TlsConfig(certificate=certificate, key=locked))
