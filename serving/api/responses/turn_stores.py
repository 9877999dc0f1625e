"""The vector stores that a turn's file search names, before a model is asked: a store that is not there finds nothing,
and an answer from nothing looks like one from the files."""

from collections.abc import Sequence

from serving.api.responses.reference import referred_to_by
from serving.api.responses.tools import AnyTool, FileSearchTool
from serving.orchestrator.retrieval.catalog import Catalog


async def check_stores(catalog: Catalog | None, tenant: str, asked: Sequence[AnyTool]) -> None:
    """Raises NotFoundError for a store that this tenant does not have, RequestError for one that has expired."""
    if catalog is None:
        return
    for number, tool in enumerate(asked):
        for at, store_id in enumerate(tool.vector_store_ids if isinstance(tool, FileSearchTool) else ()):
            with referred_to_by(f"tools[{number}].vector_store_ids[{at}]"):
                await catalog.living_store(tenant, store_id)
