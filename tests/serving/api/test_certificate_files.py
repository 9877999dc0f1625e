"""A certificate that is renewed while the server runs."""

import asyncio
import logging
import shutil
import ssl
from pathlib import Path

import pytest

from serving.api.certificate_files import CertificateFiles
from serving.api.grpc.server import GrpcServer
from serving.settings.server import TlsConfig
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.listening import listening
from tests.serving.api.test_tls import Authority, client_of

PATIENCE = 120.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> TlsConfig:
    certificate, key = authority.issue("server")
    return TlsConfig(certificate=certificate, key=key)


def renew(authority: Authority, tls: TlsConfig) -> None:
    """As tools do it: other files under the same names, one after the other."""
    certificate, key = authority.issue("renewed")
    shutil.move(certificate, tls.certificate)
    shutil.move(key, tls.key)


async def shown(authority: Authority, port: int) -> bytes:
    """The certificate that a new connection is greeted with."""
    context = ssl.create_default_context(cafile=str(authority.path))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context, family=2)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def test_new_connections_get_the_new_one_and_open_ones_go_on(
    make_api: ApiMaker, authority: Authority, tls: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.api.certificate_files.LOOK_SECONDS", 0.0)
    async with (
        asyncio.timeout(PATIENCE),
        listening(make_api().app, tls=tls) as port,
        client_of(authority) as client,
    ):
        url = f"https://localhost:{port}/health/live"
        assert (await client.get(url)).status_code == 200
        old = await shown(authority, port)
        assert await shown(authority, port) == old
        renew(authority, tls)
        while await shown(authority, port) == old:
            await asyncio.sleep(0)
        assert (await client.get(url)).status_code == 200


async def test_over_grpc_too(make_api: ApiMaker, authority: Authority, tls: TlsConfig) -> None:
    server = GrpcServer(make_api().service, "127.0.0.1", 0, 1 << 20, tls=tls)
    await server.start()
    async with asyncio.timeout(PATIENCE):
        old = await shown(authority, server.port)
        assert await shown(authority, server.port) == old
        renew(authority, tls)
        assert await shown(authority, server.port) != old
    await server.stop(0)


def test_half_a_pair_waits_for_the_other_half(
    authority: Authority, tls: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    files = CertificateFiles(tls)
    assert files.renewed() is None
    certificate, key = authority.issue("renewed")
    with caplog.at_level(logging.INFO):
        shutil.move(certificate, tls.certificate)
        assert files.renewed() is None
        assert files.renewed() is None
        tls.key.unlink()
        assert files.renewed() is None
        shutil.move(key, tls.key)
        pair = files.renewed()
        assert files.renewed() is None
    assert pair is not None
    assert pair.certificate == tls.certificate.read_bytes()
    assert [record.getMessage() for record in caplog.records] == [
        "certificate not renewed",
        "certificate not renewed",
        "certificate renewed",
    ]
