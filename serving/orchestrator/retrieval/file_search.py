"""The tool by which a model searches the vector stores that a request names."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import RequestError
from serving.orchestrator.marked_data import marked
from serving.orchestrator.retrieval.citations import marker_of
from serving.orchestrator.retrieval.query import Query, parse_query
from serving.orchestrator.retrieval.search import Told
from serving.orchestrator.tools.registry import ToolResult, ToolScope

MOST_QUERIES = 4
MOST_RESULTS = 5  # where the request does not say how many: a model's window is small

# Whose stores, which, what for.
Find = Callable[[str, Sequence[str], Query], Awaitable[list[Told]]]


@dataclass(frozen=True, slots=True)
class _Source:
    """What `marked` reads."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class FileSearchSettings:
    """What a request says beside the tool: OpenAI's fields."""

    store_ids: tuple[str, ...]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "FileSearchSettings":
        """Raises RequestError, for filters and ranking options too: a request can be refused by it before its turn."""
        stores = settings.get("vector_store_ids") or ()
        if not stores:
            raise RequestError("file_search needs vector_store_ids", param="vector_store_ids")
        made = cls(tuple(stores), {name: value for name, value in settings.items() if name != "vector_store_ids"})
        made.query(["any"])
        return made

    def query(self, texts: Sequence[str]) -> Query:
        """Raises RequestError."""
        return parse_query(
            texts,
            filters=self.given.get("filters"),
            limit=self.given.get("max_num_results") or MOST_RESULTS,
            ranking=self.given.get("ranking_options"),
        )


class FileSearch:
    """Implements `Tool`. `find` searches a tenant's stores."""

    name = "file_search"
    description = (
        "Searches the user's files. Returns passages, each between tags with its number as id. After each statement "
        "taken from a passage write that number in square brackets, such as [12345]."
    )
    idempotent = True

    def __init__(self, find: Find) -> None:
        self._find = find

    @property
    def parameters(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1, "maxLength": 1000}
        return {
            "type": "object",
            "properties": {
                "query": {**text, "description": "What to look for, in a few words or as a question."},
                "queries": {
                    "type": "array",
                    "items": text,
                    "minItems": 1,
                    "maxItems": MOST_QUERIES,
                    "description": "Beside query or instead of it: several things to look for at once.",
                },
            },
            "additionalProperties": False,
        }

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        """`scope.settings` is what the request says: vector_store_ids, filters, max_num_results, ranking_options.
        `facts["results"]` are OpenAI's, each with its marker and its citation's offsets."""
        given = [arguments.get("query", ""), *arguments.get("queries", ())]
        texts = [text for text in dict.fromkeys(given) if text.strip()]
        if not texts:
            return ToolResult(text="There is no query: say what to look for.", is_error=True)
        settings = FileSearchSettings.of(scope.settings)
        query = settings.query(texts)
        found = await self._find(scope.tenant, settings.store_ids, query)
        results = [_result(each) for each in found]
        if not results:
            return ToolResult(text="Nothing was found in the files.", facts={"results": []})
        sources = [_Source(each["marker"], each["filename"], each["text"]) for each in results]
        return ToolResult(
            text="\n\n".join(marked(source, "document") for source in sources), facts={"results": results}
        )


def _result(told: Told) -> dict[str, Any]:
    found = told.found
    passage = found.held.embedded.passage.chunk.text
    return {
        "file_id": found.file.file_id,
        "filename": found.file.filename,
        "score": found.score,
        "text": told.text,
        "attributes": found.file.attributes,
        "marker": marker_of(found.file.filename, found.held.number, passage),
        **{name: value for name, value in found.citation.items() if name not in ("file_id", "filename")},
    }
