"""One server of the Model Context Protocol: its tools as tools of a turn, named LABEL__TOOL.

A task of its own keeps the connection: it connects, lists the tools, and begins again where the connection is lost.
What goes wrong with a server is the result of calls to it, and of nothing else.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from mcp.shared.message import SessionMessage
from mcp.shared.session import RequestResponder

from serving.errors import ConfigError
from serving.orchestrator.tools.bounded_answers import TOO_LARGE, BoundedAnswers
from serving.orchestrator.tools.registry import ToolRegistry, ToolResult, ToolScope, failed
from serving.settings.tools import McpServerConfig

MAX_TOOLS = 128
MAX_BYTES = 4 << 20  # of a message over HTTP, where the deployment does not say
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts to connect, while nobody calls
_SESSION_TERMINATED = 32600  # how the client's HTTP side says that the server no longer knows the session
_log = logging.getLogger(__name__)

Incoming = RequestResponder[types.ServerRequest, types.ClientResult] | types.ServerNotification | Exception
Messages = MemoryObjectReceiveStream[SessionMessage | Exception]


class _AwayError(Exception):
    """There is no connection, or it was lost during a call."""


@dataclass(frozen=True, slots=True)
class _Connection:
    session: ClientSession
    lost: asyncio.Event


class McpServer:
    """Puts its tools into `registry` as the group "mcp:LABEL". Once seen they stay there while the server is away, so
    that prompts stay as they are; calls then say that it is."""

    def __init__(self, label: str, config: McpServerConfig, registry: ToolRegistry) -> None:
        """Raises ConfigError where an environment variable that it names is not set."""
        self.label = label
        self.config = config
        self.ready = asyncio.Event()  # connected, its tools in the registry
        self._registry = registry
        self._connection: _Connection | None = None
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        names = (*config.environment, *([config.token_variable] if config.token_variable else ()))
        for name in names:
            if name not in os.environ:
                raise ConfigError(f"tools.mcp.{label} needs the environment variable {name}", param=name)

    @property
    def group(self) -> str:
        return f"mcp:{self.label}"

    async def run(self) -> None:
        """Keeps the connection, until it is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            self._wanted.clear()
            try:
                await self._serve()
                pause = _FIRST_PAUSE
                _log.warning("the MCP server %s is gone; it is connected again", self.label)
            except Exception as error:  # of the server's making; only its own tools are away
                _log.warning("the MCP server %s cannot be used: %s", self.label, _reason(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def call(self, name: str, arguments: dict[str, Any], *, idempotent: bool) -> types.CallToolResult:
        """Raises _AwayError, and McpError where the server refuses. A call that surely has not run, or may run twice,
        is tried once more over a new connection."""
        try:
            return await self._call(name, arguments)
        except _AwayError:
            if not idempotent:
                raise
        except McpError as error:
            if error.error.code != _SESSION_TERMINATED:
                raise
            self._lose()
        return await self._call(name, arguments)

    async def _call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        connection = await self._connected()
        seconds = timedelta(seconds=self.config.seconds)
        calling = asyncio.create_task(connection.session.call_tool(name, arguments, read_timeout_seconds=seconds))
        losing = asyncio.create_task(connection.lost.wait())
        try:
            await asyncio.wait({calling, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done() or _is_loss(calling.exception()):
                self._lose()
                raise _AwayError
            return calling.result()
        finally:
            for task in (calling, losing):
                task.cancel()
            await asyncio.gather(calling, losing, return_exceptions=True)

    async def _connected(self) -> _Connection:
        if self._connection is None:
            self._wanted.set()
            try:
                await asyncio.wait_for(self.ready.wait(), self.config.connect_seconds)
            except TimeoutError:
                raise _AwayError from None
        if self._connection is None:
            raise _AwayError
        return self._connection

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.lost.set()
        self._connection = None
        self.ready.clear()

    async def _serve(self) -> None:
        """One connection, from its beginning to its loss."""
        lost = asyncio.Event()
        try:
            async with self._transport() as (read, write), anyio.create_task_group() as tasks:
                relayed, mine = anyio.create_memory_object_stream[SessionMessage | Exception](0)
                tasks.start_soon(_relay, read, relayed, lost)
                async with ClientSession(mine, write, message_handler=self._hear) as session:
                    with anyio.fail_after(self.config.connect_seconds):
                        await session.initialize()
                        await self._list(session)
                    self._connection = _Connection(session, lost)
                    self.ready.set()
                    await self._until_lost(session, lost)
                tasks.cancel_scope.cancel()
        finally:
            lost.set()
            self._connection = None
            self.ready.clear()

    async def _until_lost(self, session: ClientSession, lost: asyncio.Event) -> None:
        losing = asyncio.create_task(lost.wait())
        try:
            while not lost.is_set():
                changing = asyncio.create_task(self._changed.wait())
                await asyncio.wait({losing, changing}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                if self._changed.is_set() and not lost.is_set():
                    self._changed.clear()
                    with anyio.fail_after(self.config.connect_seconds):
                        await self._list(session)
        finally:
            losing.cancel()

    async def _hear(self, message: Incoming) -> None:
        if isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ToolListChangedNotification
        ):
            self._changed.set()  # asked for elsewhere: here its answer could not be read

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Messages, MemoryObjectSendStream[SessionMessage]]]:
        config = self.config
        if config.command:
            command, *arguments = config.command
            environment = {name: os.environ[name] for name in config.environment}
            parameters = StdioServerParameters(command=command, args=arguments, env=environment)
            async with stdio_client(parameters) as (read, write):
                yield read, write
            return
        assert config.url is not None
        headers = {"Authorization": f"Bearer {os.environ[config.token_variable]}"} if config.token_variable else {}
        timeout = httpx.Timeout(config.connect_seconds, read=config.seconds)
        transport = BoundedAnswers(httpx.AsyncHTTPTransport(trust_env=False), config.max_bytes or MAX_BYTES)
        async with (
            httpx.AsyncClient(headers=headers, timeout=timeout, transport=transport, trust_env=False) as client,
            streamable_http_client(config.url, http_client=client) as (read, write, _),
        ):
            yield read, write

    async def _list(self, session: ClientSession) -> None:
        found: list[types.Tool] = []
        page = await session.list_tools()
        while True:
            found += page.tools
            if page.nextCursor is None or len(found) > MAX_TOOLS:
                break
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=page.nextCursor))
        if len(found) > MAX_TOOLS:
            _log.warning("the MCP server %s has more than %d tools; the others are left out", self.label, MAX_TOOLS)
        self._registry.remove_group(self.group)
        for tool in found[:MAX_TOOLS]:
            if self.config.tools and tool.name not in self.config.tools:
                continue
            try:
                self._registry.add(_tool(self, tool), group=self.group, seconds=self.config.seconds)
            except ConfigError as error:
                _log.warning("a tool of the MCP server %s is left out: %s", self.label, error.message)


async def _relay(
    read: Messages, relayed: MemoryObjectSendStream[SessionMessage | Exception], lost: asyncio.Event
) -> None:
    """Passes messages on, and says when there will be no more: the session itself does not."""
    try:
        async with relayed:
            async for message in read:
                await relayed.send(message)
    finally:
        lost.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    server: McpServer
    remote_name: str
    description: str
    parameters: dict[str, Any] = field(repr=False)
    idempotent: bool

    @property
    def name(self) -> str:
        return f"{self.server.label}__{self.remote_name}"

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        label = self.server.label
        try:
            result = await self.server.call(self.remote_name, arguments, idempotent=self.idempotent)
        except _AwayError:
            return failed(f"the MCP server {label} is away now")
        except McpError as error:
            if error.error.code == TOO_LARGE:
                return failed(f"the answer of the MCP server {label} is too large: {error.error.message[:1000]}")
            return failed(f"the MCP server {label} says: {error.error.message[:1000]}")
        text = "\n".join(_text(part) for part in result.content)
        if not result.content and result.structuredContent is not None:  # the specification asks for both
            text = json.dumps(result.structuredContent, ensure_ascii=False)
        facts = {"server": label, "tool": self.remote_name, "structured": result.structuredContent}
        return ToolResult(text=text, facts=facts, is_error=result.isError)


def _tool(server: McpServer, tool: types.Tool) -> McpTool:
    hints = tool.annotations
    return McpTool(
        server=server,
        remote_name=tool.name,
        description=tool.description or tool.title or "",
        parameters=tool.inputSchema,
        # A server that says nothing is taken not to be.
        idempotent=hints is not None and bool(hints.readOnlyHint or hints.idempotentHint),
    )


def _text(part: types.ContentBlock) -> str:
    """The model reads text; of all else it learns that it is there."""
    if isinstance(part, types.TextContent):
        return part.text
    if isinstance(part, types.EmbeddedResource) and isinstance(part.resource, types.TextResourceContents):
        return part.resource.text
    if isinstance(part, types.ResourceLink):
        return f"[{part.name}: {part.uri}]"
    kind = part.mimeType if isinstance(part, types.ImageContent | types.AudioContent) else part.resource.mimeType
    return f"[{kind or 'binary data'}, which is not shown]"


def _is_loss(error: BaseException | None) -> bool:
    if isinstance(error, McpError):
        return error.error.code == types.CONNECTION_CLOSED
    return isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError)


def _reason(error: BaseException) -> str:
    """The first cause in a group of them, which task groups make."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
