"""A query parameter that would do nothing is refused, and named."""

from pathlib import Path

import pytest

from serving.config import FilesConfig
from tests.serving.api.conftest import Api, ApiMaker


@pytest.fixture
def api(make_api: ApiMaker, tmp_path: Path) -> Api:
    return make_api(files=FilesConfig(folder=tmp_path))


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ("/v1/files?ordr=asc", "ordr", "did you mean order?"),
        ("/v1/batches?order=asc", "order", "it has limit, after"),
        ("/v1/streams/s?aftre=3", "aftre", "did you mean after?"),
        ("/v1/files?limit=1&limit=2", "limit", "more than once"),
        ("/v1/files?after[]=x", "after[]", "not a query parameter"),
    ],
)
async def test_a_query_that_would_do_nothing_is_refused_by_name(api: Api, asked: str, param: str, says: str) -> None:
    reply = await api.get(asked)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert says in error["message"]


@pytest.mark.parametrize(
    "asked",
    [
        "/v1/files?limit=1&order=asc&purpose=batch",
        "/v1/responses/r?include=file_search_call.results&include=code_interpreter_call.outputs",
        "/v1/responses/r?include[]=file_search_call.results&include[]=code_interpreter_call.outputs",
        "/v1/models?beta=true",
    ],
)
async def test_queries_of_the_sdks_are_taken(api: Api, asked: str) -> None:
    reply = await api.get(asked)
    assert reply.status_code != 400, reply.text
