"""Who may ask: names of this server, and pages of which origins."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.api.conftest import ApiMaker, chat_body, text_body
from tests.serving.api.listening import listening
from tests.serving.api.page.chat_tab import chromium

TEXT = "/v1/completions"
PAGE = "https://chat.example.com"
SDK_HEADERS = "authorization,content-type,x-stainless-lang,x-stainless-os,x-stainless-retry-count,x-stainless-timeout"


async def _asked(make_api: ApiMaker, method: str, path: str, headers: dict[str, str], **server: Any) -> httpx.Response:
    async with make_api(make_api.says("x"), **server).client() as client:
        body = text_body() if method == "POST" else None
        return await client.request(method, path, headers=headers, json=body)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]", "[0:0::1]:80", "localhost."])
async def test_loopback_names_reach_a_server_on_loopback_whatever_the_port(make_api: ApiMaker, host: str) -> None:
    assert (await _asked(make_api, "POST", TEXT, {"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:8000", "localhost.evil.com", "192.168.1.5", "[fe80::1]", "127.1"]
)
@pytest.mark.parametrize(("method", "path"), [("POST", TEXT), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing")])
async def test_another_name_is_refused_on_every_path_and_the_setting_is_named(
    make_api: ApiMaker, method: str, path: str, host: str
) -> None:
    reply = await _asked(make_api, method, path, {"host": host})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (421, "host_not_allowed", "invalid_request_error")
    assert "server.allowed_hosts" in error["message"]
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("host", ["", "a b", "http://localhost", "localhost:x", "user@localhost", "[::1"])
async def test_a_malformed_host_is_a_bad_request(make_api: ApiMaker, host: str) -> None:
    reply = await _asked(make_api, "GET", "/v1/models", {"host": host})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "host", ["box.lan", "Box.LAN:80", "192.168.1.5:8000", "[fe80::1]:8000", "localhost", "10.0.0.1"]
)
async def test_names_that_are_given_and_the_servers_own_are_answered(make_api: ApiMaker, host: str) -> None:
    given = ("box.lan", "192.168.1.5", "fe80::1")
    reply = await _asked(make_api, "POST", TEXT, {"host": host}, host="10.0.0.1", allowed_hosts=given)
    assert reply.status_code == 200
    refused = await _asked(make_api, "POST", TEXT, {"host": "evil.com"}, host="10.0.0.1", allowed_hosts=given)
    assert refused.status_code == 421


async def test_a_star_lets_every_name_in(make_api: ApiMaker) -> None:
    reply = await _asked(make_api, "POST", TEXT, {"host": "evil.com"}, allowed_hosts=("*",))
    assert reply.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_probes_may_ask_by_any_address(make_api: ApiMaker, path: str) -> None:
    assert (await _asked(make_api, "GET", path, {"host": "10.1.2.3:8000"})).status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.com\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n", 200),
        (b"GET /v1/models HTTP/1.0\r\n", 421),
        (b"GET /v1/models HTTP/1.0\r\nhost: localhost\r\n", 200),
        (b"GET /health/live HTTP/1.0\r\n", 200),
    ],
)
async def test_a_host_header_is_there_once_over_a_real_socket(make_api: ApiMaker, head: bytes, status: int) -> None:
    async with listening(make_api().app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"connection: close\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 120)
        writer.close()
    assert int(reply.split()[1]) == status


async def test_refusals_at_the_gate_are_counted(make_api: ApiMaker) -> None:
    api = make_api()
    async with api.client() as client:
        await client.get("/v1/models", headers={"host": "evil.com"})
        await client.post(TEXT, json=text_body(), headers={"origin": "https://evil.com"})
        text = (await client.get("/metrics")).text
    counted = {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "weft_requests_refused_total"
    }
    assert counted == {"host_not_allowed": 1, "origin_not_allowed": 1}


@pytest.mark.parametrize(
    "origin", ["https://evil.com", "null", "http://localhost:3000", "https://chat.example.com.evil.io"]
)
async def test_a_foreign_page_changes_nothing_and_gets_no_cors_headers(make_api: ApiMaker, origin: str) -> None:
    api = make_api(make_api.says("x"), allowed_origins=(PAGE,))
    async with api.client() as client:
        reply = await client.post(TEXT, json=text_body(), headers={"origin": origin})
        asked_first = await client.options(TEXT, headers={"origin": origin, "access-control-request-method": "POST"})
        read = await client.get("/v1/models", headers={"origin": origin})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "server.allowed_origins" in reply.json()["error"]["message"]
    assert api.engine.requests == []
    assert asked_first.status_code == 405
    assert read.status_code == 200  # which the browser does not show to the page
    for each in (reply, asked_first, read):
        assert not [name for name in each.headers if name.startswith("access-control-")]
    assert "Origin" in read.headers["vary"]  # or a cache would give an allowed page this reply


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:8000", "host": "localhost:8000"},
        {"origin": "http://localhost", "host": "localhost:80"},
        {"origin": "https://box.lan", "host": "box.lan"},  # a proxy with TLS that keeps Host
        {"origin": "https://chat.lan", "host": "127.0.0.1:8000", "sec-fetch-site": "same-origin"},  # one that does not
        {},
    ],
)
async def test_the_servers_own_page_and_programs_may_ask(make_api: ApiMaker, headers: dict[str, str]) -> None:
    reply = await _asked(make_api, "POST", TEXT, headers, allowed_hosts=("box.lan",))
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers
    assert "vary" not in reply.headers


async def test_two_origins_are_refused_even_where_one_is_allowed(make_api: ApiMaker) -> None:
    async with make_api(allowed_origins=(PAGE,)).client() as client:
        headers = [("origin", PAGE), ("origin", "https://evil.com"), ("content-type", "application/json")]
        reply = await client.post(TEXT, content=json.dumps(text_body()), headers=headers)
    assert reply.status_code == 403


async def test_an_allowed_origins_preflight_and_request_are_answered(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), allowed_origins=("https://CHAT.example.com:443",))
    async with api.client() as client:
        asked = await client.options(
            TEXT,
            headers={
                "origin": PAGE,
                "access-control-request-method": "POST",
                "access-control-request-headers": SDK_HEADERS,
                "access-control-request-private-network": "true",
            },
        )
        answered = await client.post(TEXT, json=text_body(), headers={"origin": PAGE})
        refused = await client.post(TEXT, json={}, headers={"origin": PAGE})
        elsewhere = await client.post(TEXT, json=text_body(), headers={"origin": PAGE, "host": "evil.com"})
    assert (asked.status_code, asked.content) == (204, b"")
    assert asked.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert asked.headers["access-control-allow-headers"] == SDK_HEADERS
    assert asked.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in asked.headers
    for reply, status in ((asked, 204), (answered, 200), (refused, 400)):
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "Origin" in reply.headers["vary"]
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
    assert elsewhere.status_code == 421
    assert "access-control-allow-origin" not in elsewhere.headers


async def test_a_preflights_headers_are_echoed_only_where_they_are_names(make_api: ApiMaker) -> None:
    headers = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "a: <b>"}
    reply = await _asked(make_api, "OPTIONS", TEXT, headers, allowed_origins=(PAGE,))
    assert reply.status_code == 204
    assert "access-control-allow-headers" not in reply.headers


def _call_as_the_sdk_does() -> str:
    return (Path(__file__).parent / "in_page" / "call_as_the_sdk_does.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_page_of_another_origin_streams_in_a_real_browser_if_it_is_allowed(
    make_api: ApiMaker, allowed: bool
) -> None:
    page_server = make_api()
    async with listening(page_server.app) as page_port:
        origins = (f"http://127.0.0.1:{page_port}",) if allowed else ()
        api = make_api(make_api.says("abc"), allowed_origins=origins)
        async with listening(api.app) as api_port:
            found = await asyncio.to_thread(
                _in_browser, f"http://127.0.0.1:{page_port}/health/live", f"http://127.0.0.1:{api_port}/v1"
            )
    assert bool(api.engine.requests) == allowed
    if not allowed:
        assert found["failed"]
        return
    assert found["status"] == 200
    assert found["request_id"]
    assert found["text"].endswith("data: [DONE]\n\n")


def _in_browser(page: str, base_url: str) -> dict[str, Any]:
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page)
        return tab.evaluate(_call_as_the_sdk_does(), {"baseURL": base_url, "body": chat_body(stream=True)})
