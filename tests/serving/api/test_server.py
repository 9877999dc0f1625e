import asyncio
import socket
from pathlib import Path

import httpx

from serving.api.server import api_server
from tests.serving.api.conftest import ApiMaker


async def test_any_socket_that_listens_is_served_and_the_server_does_not_name_itself(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    app = make_api().app
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        server = api_server(app)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "socket"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.get("/health/ready")
        assert reply.status_code == 200
        assert "server" not in reply.headers
        server.should_exit = True
        await task
