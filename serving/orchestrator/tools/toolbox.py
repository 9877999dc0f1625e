"""The tools of a deployment, and the servers that some of them are on."""

import asyncio
import os
from typing import TYPE_CHECKING

from serving.errors import ConfigError
from serving.orchestrator.tools.calculator import Calculator
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.dates import Dates
from serving.orchestrator.tools.public_addresses import PublicAddresses
from serving.orchestrator.tools.registry import ToolRegistry
from serving.orchestrator.tools.sandbox import Sandbox, SandboxLimits
from serving.orchestrator.tools.web_fetch import WebFetch
from serving.orchestrator.tools.web_search import WebSearch
from serving.settings.containers import ContainersConfig
from serving.settings.tools import CodeInterpreterConfig, ToolsConfig, WebConfig

if TYPE_CHECKING:
    from serving.orchestrator.tools.mcp_server import McpServer


class Toolbox:
    """Raises ConfigError where a tool lacks what it needs."""

    def __init__(self, config: ToolsConfig | None = None) -> None:
        config = config or ToolsConfig()
        self.registry = ToolRegistry()
        self.containers = ContainersConfig() if config.code_interpreter is None else config.code_interpreter.containers
        if config.calculator:
            self.registry.add(Calculator())
        if config.dates:
            self.registry.add(Dates())
        if config.code_interpreter is not None:
            self._add_code_interpreter(config.code_interpreter)
        if config.web is not None:
            self._add_web(config.web)
        self.servers = _servers(config, self.registry)

    async def run(self) -> None:
        """Keeps the connections to servers, until it is cancelled."""
        async with asyncio.TaskGroup() as keeping:
            for server in self.servers:
                keeping.create_task(server.run())

    def _add_code_interpreter(self, config: CodeInterpreterConfig) -> None:
        limits = SandboxLimits(
            seconds=config.seconds,
            memory_bytes=config.memory_bytes,
            processes=config.processes,
            folder_bytes=config.folder_bytes,
            output_bytes=config.output_bytes,
            given_files=config.given_files,
            given_bytes=config.given_bytes,
            result_files=config.containers.files,
            result_bytes=config.written_bytes,
        )
        tool = CodeInterpreter(
            Sandbox(limits, config.interpreter),
            concurrent=config.concurrent,
            tenant_concurrent=config.tenant_concurrent or max(1, config.concurrent // 2),
        )
        # A call may wait until another's program has ended.
        self.registry.add(tool, seconds=4 * config.seconds + 10)

    def _add_web(self, web: WebConfig) -> None:
        """Both answer to a request for web_search: to read a page one has to find it."""
        if web.search_url is not None:
            token = None if web.search_token_variable is None else os.environ.get(web.search_token_variable)
            if token is None and web.search_token_variable is not None:
                raise ConfigError(
                    f"tools.web needs the environment variable {web.search_token_variable}",
                    param=web.search_token_variable,
                )
            search = WebSearch(web.search_url, token=token, seconds=web.seconds)
            self.registry.add(search, group=WebSearch.name, seconds=web.seconds)
        if web.fetch:
            addresses = PublicAddresses(web.allowed_networks)
            fetch = WebFetch(addresses, max_bytes=web.max_bytes, seconds=web.seconds)
            group = WebSearch.name if web.search_url is not None else WebFetch.name
            self.registry.add(fetch, group=group, seconds=web.seconds)


def _servers(config: ToolsConfig, registry: ToolRegistry) -> "tuple[McpServer, ...]":
    if not config.mcp:
        return ()
    # Here and not above: most deployments do without, and the protocol's package takes a while to import.
    from serving.orchestrator.tools.mcp_server import McpServer

    return tuple(McpServer(label, server, registry) for label, server in config.mcp.items())
