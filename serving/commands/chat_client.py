"""The OpenAI chat API as the terminal chat uses it."""

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import httpx

from serving.errors import EngineUnavailableError, RequestError


class ChatClient:
    """`http` has the server's base address."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._model: str | None = None

    def model(self) -> str:
        """The first model that the server names. Raises EngineUnavailableError or RequestError."""
        if self._model is None:
            try:
                reply = self._http.get("/v1/models")
            except httpx.TransportError as error:
                raise _unreachable(self._http, error) from error
            _check(reply.status_code, reply.content)
            try:
                self._model = str(reply.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise RequestError(f"{self._http.base_url}: the server there names no model at /v1/models") from None
        return self._model

    def stream(self, messages: Sequence[dict[str, str]]) -> Generator[str, None, None]:
        """The answer's text as it comes. Closing the iterator closes the connection, and so stops the server."""
        body = {"model": self.model(), "messages": list(messages), "stream": True}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    _check(reply.status_code, reply.read())
                for line in reply.iter_lines():
                    if line.startswith("data:") and (payload := line[5:].strip()) != "[DONE]":
                        yield from _texts(json.loads(payload))
        except httpx.TransportError as error:
            raise _unreachable(self._http, error) from error


def _texts(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        raise RequestError(chunk["error"]["message"])
    for choice in chunk["choices"]:
        if text := choice["delta"].get("content"):
            yield text


def _check(status: int, body: bytes) -> None:
    if status == 200:
        return
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with HTTP status {status}"
    raise EngineUnavailableError(message) if status == 503 else RequestError(message)


def _unreachable(http: httpx.Client, error: httpx.TransportError) -> EngineUnavailableError:
    return EngineUnavailableError(f"no server can be reached at {http.base_url}: {error}")
