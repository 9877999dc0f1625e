"""A server that is full refuses before it parses a body, on every path that generates."""

import pytest

from serving.access import AccessConfig, AdmissionConfig
from serving.gateway.gateway import Gateway
from tests.serving.api.conftest import ApiMaker

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


@pytest.mark.parametrize("path", PATHS)
async def test_what_cannot_be_parsed_is_refused_unread_while_the_server_is_full(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    gateway = Gateway(AccessConfig(admission=AdmissionConfig(standard_seconds=1.0)))
    api = make_api(gateway=gateway)
    monkeypatch.setattr("serving.gateway.capacity.Capacity.predict", lambda *_: 50.0)
    headers = {"content-type": "application/json"}
    async with api.client() as client:
        refused = await client.post(path, content=b"{not JSON", headers=headers)
        wishing = await client.post(path, content=b'{not JSON, "priority": "interactive"', headers=headers)
    assert (refused.status_code, wishing.status_code) == (503, 400)
    assert int(refused.headers["retry-after"]) >= 1
    assert "queue_too_long" in refused.text or "overloaded" in refused.text
