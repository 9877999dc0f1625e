"""A chat server whose every answer is dictated by the test: the page's counterpart, over real HTTP on a real port."""

import asyncio
import json
import queue
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.api.page import page_routes

WAIT = 90.0  # seconds until a test that waits in vain fails; no test passes because of it
END = b""


class Exchange:
    """One chat completion, or one reading of its stream, as the server sees it: the request, and what the test lets it
    answer."""

    def __init__(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        self.disconnected = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._stream_id: str | None = None
        self._events = 0
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._head: asyncio.Future[Response] = self._loop.create_future()

    def refuse(self, status: int, error: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        response = JSONResponse({"error": error}, status, headers=headers)
        self._loop.call_soon_threadsafe(self._head.set_result, response)

    def start(self, stream_id: str | None = None, after: int = 0, headers: dict[str, str] | None = None) -> None:
        """With a `stream_id`, of a stream that can be read again; events are numbered from `after` on."""
        self._stream_id, self._events = stream_id, after
        headers = {**(headers or {}), **({"x-weft-stream-id": stream_id} if stream_id else {})}
        response = StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)
        self._loop.call_soon_threadsafe(self._head.set_result, response)

    def raw(self, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self._chunks.put_nowait, data)

    def event(self, payload: dict[str, Any]) -> None:
        self._events += 1
        event_id = f"id: {self._stream_id}:{self._events}\n" if self._stream_id else ""
        self.raw(event_id.encode() + b"data: " + json.dumps(payload).encode() + b"\n\n")

    def say(self, text: str) -> None:
        self.delta({"content": text})

    def delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    def finish(self, reason: str = "stop", completion_tokens: int = 7) -> None:
        self.delta({}, reason)
        self.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": completion_tokens}})
        self.raw(b"data: [DONE]\n\n")
        self.raw(END)

    def answer(self, text: str) -> None:
        self.start()
        self.say(text)
        self.finish()

    def cut(self) -> None:
        """Ends the response in the middle of the stream."""
        self.raw(END)

    async def response(self) -> Response:
        return await self._head

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._chunks.get()) != END:
                yield chunk
        except asyncio.CancelledError:
            self.disconnected.set()
            raise


class ScriptedChat:
    """Hands each completion request to the test, which answers it through the Exchange."""

    def __init__(self) -> None:
        self.models = ["weft-demo", "weft-large"]
        self.ready = True
        self.cancelled: queue.Queue[str] = queue.Queue()
        self.tools: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}  # that were uploaded, by name
        self.written: dict[str, bytes] = {}  # files of the container c1, by id
        self.unreadable: set[str] = set()  # names of files that the server cannot read
        self.store_has_expired = False
        self.memory: list[dict[str, Any]] | None = None  # its entries; None: the server has none
        self.ratings: queue.Queue[dict[str, Any]] = queue.Queue()
        self.takes_ratings = True
        self.remembers: dict[str, bool] = {}  # by user, what was switched
        self._exchanges: queue.Queue[Exchange] = queue.Queue()
        self.app = Starlette(
            routes=[
                *page_routes(),
                Route("/v1/models", self._models),
                Route("/health/ready", self._ready),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/streams/{id}", self._read, methods=["GET"]),
                Route("/v1/streams/{id}", self._cancel, methods=["DELETE"]),
                Route("/v1/tools", self._tools),
                Route("/v1/memory", self._memory, methods=["GET", "POST", "DELETE"]),
                Route("/v1/feedback", self._rate, methods=["POST"]),
                Route("/v1/responses", self._complete, methods=["POST"]),
                Route("/v1/responses/{id}", self._read, methods=["GET"]),
                Route("/v1/responses/{id}/cancel", self._cancel, methods=["POST"]),
                Route("/v1/files", self._upload, methods=["POST"]),
                Route("/v1/files/{id}", self._removed, methods=["DELETE"]),
                Route("/v1/containers/c1/files/{id}/content", self._content),
                Route("/v1/vector_stores", self._store, methods=["POST"]),
                Route("/v1/vector_stores/{store}/files", self._attach, methods=["POST"]),
                Route("/v1/vector_stores/{store}/files/{id}", self._attached, methods=["GET"]),
                Route("/v1/vector_stores/{store}", self._stored, methods=["GET"]),
                Route("/v1/vector_stores/{store}/files", self._stored_files, methods=["GET"]),
            ]
        )

    def exchange(self) -> Exchange:
        return self._exchanges.get(timeout=WAIT)

    def no_exchange_waits(self) -> bool:
        return self._exchanges.empty()

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _ready(self, _request: Request) -> Response:
        return Response(status_code=200 if self.ready else 503)

    async def _complete(self, request: Request) -> Response:
        return await self._hand_out(request, await request.json())

    async def _read(self, request: Request) -> Response:
        return await self._hand_out(request, {})

    async def _cancel(self, request: Request) -> Response:
        self.cancelled.put(request.path_params["id"])
        return JSONResponse({})

    async def _tools(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.tools})

    async def _memory(self, request: Request) -> Response:
        if self.memory is None:
            return JSONResponse({"error": {"message": "there is no such path"}}, 404)
        if request.method == "POST":
            body = await request.json()
            self.remembers[body["user"]] = body["enabled"]
        if request.method == "DELETE":
            wanted = request.query_params.get("id")
            self.memory = [entry for entry in self.memory if wanted not in (None, entry["id"])]
        user = request.query_params.get("user")
        on = self.remembers.get(user or "", True)
        return JSONResponse({"user": user, "enabled": on, "strategy": "selective", "data": self.memory})

    async def _rate(self, request: Request) -> Response:
        body = await request.json()
        self.ratings.put(body)
        if not self.takes_ratings:
            return JSONResponse({"error": {"message": "there is no such answer"}}, 404)
        return JSONResponse({"object": "feedback", **body, "known": True})

    async def _upload(self, request: Request) -> Response:
        async with request.form() as form:
            file = form["file"]
            assert isinstance(file, UploadFile)
            assert form["purpose"] == "assistants"
            assert form["expires_after[anchor]"] == "created_at"
            assert form["expires_after[seconds]"] == "2592000"
            name = file.filename or ""
            self.files[name] = await file.read()
        return JSONResponse({"id": f"file-{name}"})

    async def _content(self, request: Request) -> Response:
        content = self.written.get(request.path_params["id"])
        if request.headers.get("authorization") != "Bearer page-key" or content is None:
            return JSONResponse({"error": {"message": "there is no container c1"}}, 404)
        return Response(content, media_type="application/octet-stream", headers={"content-disposition": "attachment"})

    async def _store(self, _request: Request) -> Response:
        return JSONResponse({"id": "vs_1"})

    async def _stored(self, _request: Request) -> Response:
        status = "expired" if self.store_has_expired else "completed"
        return JSONResponse({"id": "vs_1", "status": status, "file_counts": {"total": len(self.files)}})

    async def _stored_files(self, request: Request) -> Response:
        """One a page, so that who stops at the first page misses files."""
        ids = [f"file-{name}" for name in self.files]
        at = ids.index(request.query_params["after"]) + 1 if "after" in request.query_params else 0
        page = ids[at : at + 1]
        more = at + 1 < len(ids)
        return JSONResponse(
            {"data": [{"id": one} for one in page], "last_id": page[-1] if page else None, "has_more": more}
        )

    async def _attach(self, _request: Request) -> Response:
        return JSONResponse({"status": "in_progress"})

    async def _attached(self, request: Request) -> Response:
        if request.path_params["id"].removeprefix("file-") in self.unreadable:
            return JSONResponse({"status": "failed", "last_error": {"message": "it is damaged"}})
        return JSONResponse({"status": "completed", "last_error": None})

    async def _removed(self, request: Request) -> Response:
        self.files.pop(request.path_params["id"].removeprefix("file-"), None)
        return JSONResponse({"deleted": True})

    async def _hand_out(self, request: Request, body: dict[str, Any]) -> Response:
        exchange = Exchange(request.url.path, body, dict(request.headers))
        self._exchanges.put(exchange)
        return await exchange.response()


@contextmanager
def serving(chat: ScriptedChat) -> Iterator[str]:
    """Runs the server in a thread on a free loopback port; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(chat.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(WAIT)
