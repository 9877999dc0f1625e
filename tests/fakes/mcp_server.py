"""A server of the Model Context Protocol that fails on demand. Over stdio: python mcp_server.py."""

import asyncio
import os

from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations


def failing_server(*, json_response: bool = False) -> FastMCP:
    server = FastMCP("failing", log_level="ERROR", json_response=json_response)
    silent: set[int] = set()

    @server.tool(annotations=ToolAnnotations(idempotentHint=True))
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def refuse() -> str:
        """Always fails."""
        raise ValueError("not today")

    @server.tool()
    async def wait_for_ever() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    def die() -> str:
        """Ends the server's process in the middle of a call."""
        os._exit(1)

    @server.tool()
    def picture() -> Image:
        """Not text."""
        return Image(data=b"no picture", format="png")

    @server.tool()
    def weigh() -> CallToolResult:
        """Only structured."""
        return CallToolResult(content=[], structuredContent={"weight": 21.5, "unit": "µg"})

    @server.tool()
    def talk(characters: int) -> CallToolResult:
        """Says so much."""
        return CallToolResult(content=[TextContent(type="text", text="x" * characters)])

    @server.tool()
    def variable(name: str) -> str:
        """A variable of the server's environment."""
        return os.environ.get(name, "not set")

    @server.tool()
    async def grow(context: Context) -> str:
        """Adds a tool."""
        server.add_tool(lambda: "new", name="grown", description="Was not there before.")
        await context.session.send_tool_list_changed()
        return "grown"

    @server.tool()
    async def mute(context: Context) -> str:
        """From now on this session is never told the tools."""
        silent.add(id(context.session))
        await context.session.send_tool_list_changed()
        return "muted"

    listed = server.list_tools

    async def listed_where_not_mute() -> list[Tool]:
        if id(server.get_context().session) in silent:
            await asyncio.Event().wait()
        return await listed()

    server._mcp_server.list_tools()(listed_where_not_mute)
    return server


if __name__ == "__main__":
    failing_server().run("stdio")
