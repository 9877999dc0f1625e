"""What a tier says of files, batches and vector stores stands over what the deployment says."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from serving.access import AccessConfig, StorageConfig, TierConfig
from serving.api.batches.batch import Batch, new_batch_id
from serving.api.batches.batch_store import BatchStore
from serving.api.files.file_store import FileStore
from serving.config import FilesConfig
from serving.errors import NotFoundError
from serving.gateway.gateway import Gateway
from serving.settings.retrieval import RetrievalConfig
from tests.fakes.word_encoder import word_text_embedder
from tests.serving.api.conftest import Api, ApiMaker


@pytest.fixture
def api(make_api: ApiMaker, tmp_path: Path) -> Api:
    """The deployment's own limits are far above its tier's."""
    storage = StorageConfig(files=2, file_bytes=1000, vector_stores=1)
    tier = TierConfig(best_priority="interactive", storage=storage)
    return make_api(
        chat=False,
        gateway=Gateway(AccessConfig(tiers={"default": tier})),
        files=FilesConfig(folder=tmp_path / "files"),
        retrieval=RetrievalConfig(folder=tmp_path / "stores"),
        encoder=word_text_embedder(tmp_path / "encoder", "wool"),
    )


async def upload(client: httpx.AsyncClient, data: bytes) -> httpx.Response:
    return await client.post("/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": "batch"})


def refusal(reply: httpx.Response) -> tuple[Any, ...]:
    error = reply.json()["error"]
    return reply.status_code, error["type"], error["code"], reply.headers["x-quota-limit"]


async def test_a_tier_bounds_files_and_a_batch_that_could_not_keep_its_answers(api: Api) -> None:
    async with api.client() as client:
        file = (await upload(client, b"x" * 900)).json()["id"]
        assert refusal(await upload(client, b"x" * 101)) == (429, "insufficient_quota", "file_bytes", "1000")
        assert (await upload(client, b"x" * 100)).status_code == 200
        assert refusal(await upload(client, b"")) == (429, "insufficient_quota", "files", "2")
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert refusal(await client.post("/v1/batches", json=body)) == (429, "insufficient_quota", "files", "2")


async def test_a_tier_bounds_vector_stores(api: Api) -> None:
    async with api.client() as client:
        assert (await client.post("/v1/vector_stores", json={})).status_code == 200
        refused = await client.post("/v1/vector_stores", json={})
        assert refusal(refused) == (429, "insufficient_quota", "vector_stores", "1")


async def test_of_a_tenants_batches_the_oldest_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    files = FileStore(FilesConfig(), tmp_path)
    store = BatchStore(files.facts, 16, most_kept=2)

    async def add(tenant: str, **fields: Any) -> str:
        batch = Batch(
            id=new_batch_id(),
            tenant=tenant,
            principal=b"",
            endpoint="/v1/completions",
            input_file_id="f",
            created_at=1,
            expires_at=2,
        )
        await store.add(batch)
        await store.change(batch.id, lambda made: msgspec.structs.replace(made, **fields))
        return batch.id

    theirs = await add("b", status="completed")
    running = await add("a")
    first, second, third = [await add("a", status="completed") for _ in range(3)]
    with pytest.raises(NotFoundError):
        await store.find("a", first)
    for tenant, name in (("a", running), ("a", second), ("a", third), ("b", theirs)):
        await store.find(tenant, name)
    files.facts.close()
