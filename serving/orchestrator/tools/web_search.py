"""Search through the deployment's own endpoint: SearXNG's form, GET ?q=...&format=json."""

from typing import Annotated, Any

import httpx
import msgspec

from serving.orchestrator.tools.registry import ToolResult, ToolScope, failed

_MOST_BYTES = 4 << 20  # of an answer
_MOST_RESULTS = 10


class _Found(msgspec.Struct):
    url: str
    title: str = ""
    content: str | None = None


class _Answer(msgspec.Struct):
    results: Annotated[list[_Found], msgspec.Meta(max_length=1000)]


class WebSearch:
    """`url` is the operator's and may be anywhere; what comes from it is data."""

    name = "web_search"
    description = "Searches the web. Gives back titles, addresses and excerpts of pages."
    idempotent = True

    def __init__(self, url: str, *, token: str | None = None, seconds: float) -> None:
        self._url = url
        self._headers = {"User-Agent": "weft"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._seconds = seconds

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": 500},
                "max_results": {"type": "integer", "minimum": 1, "maximum": _MOST_RESULTS},
            },
            "required": ["query"],
            "additionalProperties": False,
        }

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        try:
            found = await self._ask(arguments["query"])
        except httpx.HTTPStatusError as error:
            return failed(f"the search answered with status {error.response.status_code}")
        except httpx.HTTPError:
            return failed("the search cannot be reached now")
        except msgspec.MsgspecError:
            return failed("the search gave an answer that cannot be read")
        found = found[: arguments.get("max_results", 5)]
        lines = [f"{n}. {one.title}\n{one.url}\n{one.content or ''}".rstrip() for n, one in enumerate(found, 1)]
        facts = {"query": arguments["query"], "results": msgspec.to_builtins(found)}
        return ToolResult(text="\n\n".join(lines) or "nothing was found", facts=facts)

    async def _ask(self, query: str) -> list[_Found]:
        async with (
            httpx.AsyncClient(headers=self._headers, timeout=self._seconds, trust_env=False) as client,
            client.stream("GET", self._url, params={"q": query, "format": "json"}) as response,
        ):
            response.raise_for_status()
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise msgspec.DecodeError("the answer is too long")
        return msgspec.json.decode(bytes(body), type=_Answer).results
