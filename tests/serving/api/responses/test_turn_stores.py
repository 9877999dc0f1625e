"""A turn whose file search names a store that is not there is refused before a model is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.api.responses.tools import FileSearchTool, FunctionTool
from serving.api.responses.turn_stores import check_stores
from serving.errors import NotFoundError, RequestError
from serving.orchestrator.retrieval.catalog import Catalog, CatalogLimits
from serving.orchestrator.retrieval.vector_store import DAY, VectorStore


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    limits = CatalogLimits(tenant_stores=9, store_files=9, tenant_bytes=9)
    made = Catalog(tmp_path, limits, lambda: 2.0 * DAY)
    yield made
    made.close()


def searching(*store_ids: str) -> tuple[FunctionTool, FileSearchTool]:
    return FunctionTool(name="other"), FileSearchTool(vector_store_ids=list(store_ids))


async def test_stores_of_the_tenant_may_be_searched(catalog: Catalog) -> None:
    await catalog.add_store(VectorStore(id="vs_a", tenant="acme", encoder="e", created_at=0, last_active_at=0))
    await check_stores(catalog, "acme", searching("vs_a"))


@pytest.mark.parametrize(
    ("name", "tenant", "kind", "code"),
    [
        ("vs_none", "acme", NotFoundError, "vector_store_not_found"),
        ("vs_a", "other", NotFoundError, "vector_store_not_found"),
        ("vs_old", "acme", RequestError, "vector_store_expired"),
    ],
)
async def test_a_store_that_is_not_there_is_named_by_its_place(
    catalog: Catalog, name: str, tenant: str, kind: type[RequestError], code: str
) -> None:
    for store_id, days in (("vs_a", None), ("vs_old", 1)):
        store = VectorStore(id=store_id, tenant="acme", encoder="e", created_at=0, last_active_at=0, expires_days=days)
        await catalog.add_store(store)
    with pytest.raises(kind, match=name) as caught:
        await check_stores(catalog, tenant, searching(name))
    assert (caught.value.param, caught.value.code) == ("tools[1].vector_store_ids[0]", code)
