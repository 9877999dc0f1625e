"""The vector stores of a tenant, erased from the catalog and from the index."""

from collections.abc import Mapping, Sequence

from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.retrieval.index import Index


async def erase_stores(catalog: Catalog, index: Index, tenant: str, dry_run: bool) -> Mapping[str, int]:
    """What there is of a tenant; unless it is only looked at, it is gone. Raises OverloadedError.

    The index first, so that what a kill interrupts is still known; and once more, because a file that was being
    ingested may have come back meanwhile. Then nobody knows of the store any more, and nothing is added to it.
    """
    stores, found = await catalog.erase(tenant, dry_run=True)
    if not dry_run:
        await _drop(index, stores)
        await catalog.erase(tenant, dry_run=False)
        await _drop(index, stores)
    return found


async def _drop(index: Index, stores: Sequence[str]) -> None:
    for store in stores:
        await index.drop(store)
