"""What a deployment says of tools that run here (docs/tools.md)."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.errors import ConfigError
from serving.settings.containers import ContainersConfig, container_faults

_LABEL = re.compile(r"[a-zA-Z0-9-]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeInterpreterConfig:
    """Each limit is of one program (docs/tools.md says what keeps it in)."""

    interpreter: Path = Path("/usr/bin/python3")  # a Python under /usr
    concurrent: int = 4  # programs that run at once
    tenant_concurrent: int | None = None  # of one tenant; None: half of them
    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    processes: int = 16
    folder_bytes: int = 64 << 20  # of its files
    output_bytes: int = 64 << 10
    given_files: int = 16  # that a request may name (container.file_ids)
    given_bytes: int = 32 << 20  # of them together; they lie in memory while a program runs
    written_bytes: int = 8 << 20  # of the files that it leaves
    containers: ContainersConfig = field(default_factory=ContainersConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """Search and fetch; each is there where it is asked for."""

    search_url: str | None = None  # of a SearXNG instance's /search, or what answers like it; None: no web_search
    search_token_variable: str | None = None  # the environment variable with its bearer token
    fetch: bool = False  # web_fetch: pages of the public internet
    allowed_networks: tuple[str, ...] = ()  # such as "10.1.0.0/16": addresses that fetch may reach though not public
    max_bytes: int = 2 << 20  # of a page
    seconds: float = 20.0  # of one search or fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """A server of the Model Context Protocol: a command that speaks it over stdio, or a URL over streamable HTTP."""

    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # names of this process's variables that the command sees, beside PATH and HOME
    url: str | None = None
    token_variable: str | None = None  # the environment variable with the URL's bearer token
    tools: tuple[str, ...] = ()  # those that are offered; empty: all
    seconds: float = 30.0  # of one call
    max_bytes: int | None = None  # of one message of a url's; None: 4 MiB
    connect_seconds: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    calculator: bool = True
    dates: bool = True
    code_interpreter: CodeInterpreterConfig | None = None  # None: there is none
    web: WebConfig | None = None
    mcp: Mapping[str, McpServerConfig] = field(default_factory=dict)  # by the label that is their tools' prefix


def check_tools(config: ToolsConfig, where: str) -> None:
    """Raises ConfigError."""
    for key, message in _faults(config):
        raise ConfigError(f"{where}: tools.{key} {message}", param=f"tools.{key}")


def _faults(config: ToolsConfig) -> Iterator[tuple[str, str]]:
    code, web = config.code_interpreter, config.web
    if code is not None:
        least = {"concurrent": 1, "memory_bytes": 1 << 24, "processes": 2, "folder_bytes": 1 << 12, "output_bytes": 64}
        least |= {"given_files": 1, "given_bytes": 1, "written_bytes": 1}
        for name, bound in least.items():
            if getattr(code, name) < bound:
                yield f"code_interpreter.{name}", f"must be at least {bound}, not {getattr(code, name)}"
        if code.tenant_concurrent is not None and not 1 <= code.tenant_concurrent <= code.concurrent:
            yield (
                "code_interpreter.tenant_concurrent",
                f"must be in 1 .. concurrent ({code.concurrent}), not {code.tenant_concurrent}",
            )
        yield from _seconds("code_interpreter.seconds", code.seconds)
        for name, message in container_faults(code.containers, code.folder_bytes):
            yield f"code_interpreter.{name}", message
    if web is not None:
        if web.search_url is None and not web.fetch:
            yield "web", "must have a search_url, or fetch = true"
        if web.search_url is not None:
            yield from _web_address("web.search_url", web.search_url)
        for network in web.allowed_networks:
            if not _is_network(network):
                yield "web.allowed_networks", f"must be networks such as 10.1.0.0/16, not {network!r}"
        if not 1024 <= web.max_bytes <= 1 << 28:
            yield "web.max_bytes", f"must be in 1024 .. {1 << 28}, not {web.max_bytes}"
        yield from _seconds("web.seconds", web.seconds)
    for label, server in config.mcp.items():
        yield from _server_faults(f"mcp.{label}", label, server)


def _server_faults(key: str, label: str, server: McpServerConfig) -> Iterator[tuple[str, str]]:
    if not _LABEL.fullmatch(label):
        yield key, "must have a label of at most 32 letters, digits and dashes"
    if bool(server.command) == (server.url is not None):
        yield key, "must have either a command or a url"
    if server.url is not None:
        yield from _web_address(f"{key}.url", server.url)
    if server.token_variable is not None and server.url is None:
        yield f"{key}.token_variable", "is for a url; name a command's variables in environment"
    if server.environment and not server.command:
        yield f"{key}.environment", "is for a command"
    if server.max_bytes is not None and server.url is None:
        yield f"{key}.max_bytes", "is for a url: what a command writes is not bounded"
    if server.max_bytes is not None and not 1024 <= server.max_bytes <= 1 << 28:
        yield f"{key}.max_bytes", f"must be in 1024 .. {1 << 28}, not {server.max_bytes}"
    yield from _seconds(f"{key}.seconds", server.seconds)
    yield from _seconds(f"{key}.connect_seconds", server.connect_seconds)


def _seconds(key: str, value: float) -> Iterator[tuple[str, str]]:
    if not 0 < value <= 3600:
        yield key, f"must be above 0 and at most 3600, not {value}"


def _web_address(key: str, value: str) -> Iterator[tuple[str, str]]:
    if not value.startswith(("http://", "https://")):
        yield key, f"must begin with http:// or https://, not {value!r}"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
