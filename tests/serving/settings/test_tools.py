import pytest

from serving.errors import ConfigError
from serving.settings.tools import McpServerConfig, ToolsConfig, check_tools


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (McpServerConfig(command=("clock",), max_bytes=4096), "mcp.srv.max_bytes is for a url"),
        (McpServerConfig(url="http://srv/mcp", max_bytes=10), "mcp.srv.max_bytes must be in 1024"),
        (McpServerConfig(command=("clock",), token_variable="TOKEN"), "mcp.srv.token_variable is for a url"),
        (McpServerConfig(url="http://srv/mcp", environment=("A",)), "mcp.srv.environment is for a command"),
    ],
)
def test_what_a_server_could_not_keep_to_is_refused(server: McpServerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_tools(ToolsConfig(mcp={"srv": server}), "deployment.toml")


def test_a_server_over_http_may_be_bounded() -> None:
    check_tools(ToolsConfig(mcp={"srv": McpServerConfig(url="http://srv/mcp", max_bytes=4096)}), "deployment.toml")
