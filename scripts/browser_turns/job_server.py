"""A server of the Model Context Protocol whose job never ends: `python -m scripts.browser_turns.job_server`."""

from mcp.server.fastmcp import FastMCP

PENDING = "not ready yet"
server = FastMCP("jobs", log_level="ERROR")


@server.tool()
def get_report(number: int) -> str:
    """Get the report of a number."""
    return PENDING


if __name__ == "__main__":
    server.run()
