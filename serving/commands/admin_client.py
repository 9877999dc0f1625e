"""The admin listener, as commands ask it."""

import argparse
from types import TracebackType
from typing import Any

import httpx

from serving.commands.argument_types import http_url
from serving.errors import EngineUnavailableError, RequestError

_CONNECT_SECONDS = 10.0  # an operation itself may take minutes: weights are read in it


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=http_url,
        required=True,
        metavar="URL",
        help="of the admin listener (admin.port), such as http://127.0.0.1:8001",
    )


class AdminClient:
    def __init__(self, url: str, key: str | None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises RequestError or EngineUnavailableError."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            reply = self._http.request(method, path, json=body)
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise EngineUnavailableError(f"no server can be reached at {self._http.base_url}: {error}") from error
        if reply.status_code == 200:
            try:
                return reply.json()
            except ValueError:
                raise RequestError(f"{self._http.base_url}: no admin listener of weft answers there") from None
        try:
            message = str(reply.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"the server answered with HTTP status {reply.status_code}"
        raise EngineUnavailableError(message) if reply.status_code == 503 else RequestError(message)
