"""GET /v1/tools: what a request to /v1/responses may name in its `tools`, of what runs here."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.orchestrator.tools.registry import ToolRegistry

_MCP = "mcp:"  # before the label of a server


def tool_routes(registry: ToolRegistry) -> list[Route]:
    async def listed(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_shown(registry, group) for group in registry.groups]})

    return [Route("/v1/tools", listed, methods=["GET"])]


def _shown(registry: ToolRegistry, group: str) -> dict[str, object]:
    names = registry.group(group)
    tools = [tool for name in names if (tool := registry.get(name)) is not None]
    kind = {"type": "mcp", "server_label": group.removeprefix(_MCP)} if group.startswith(_MCP) else {"type": group}
    return {
        "object": "tool",
        **kind,
        "functions": [{"name": tool.name, "description": tool.description} for tool in tools],
    }
