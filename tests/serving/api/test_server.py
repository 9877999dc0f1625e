import asyncio
import socket
from pathlib import Path

import httpx

from serving.api.server import Listen, api_server
from tests.serving.api.conftest import ApiMaker


def test_only_this_machine_can_connect_unless_told_otherwise() -> None:
    assert Listen().host == "127.0.0.1"


async def test_a_unix_socket_and_an_inherited_one_serve_the_same_api(make_api: ApiMaker, tmp_path: Path) -> None:
    app = make_api().app
    inherited = socket.socket(socket.AF_UNIX)
    inherited.bind(str(tmp_path / "inherited"))
    inherited.listen()
    for listen, path in (
        (Listen(uds=str(tmp_path / "own")), tmp_path / "own"),
        (Listen(fd=inherited.fileno()), tmp_path / "inherited"),
    ):
        server = api_server(app, listen)
        task = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.get("/health/ready")
        assert reply.status_code == 200
        assert "server" not in reply.headers
        server.should_exit = True
        await task
    inherited.close()
