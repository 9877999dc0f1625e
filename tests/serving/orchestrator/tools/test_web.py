"""Search and fetch, over a web of this process's own: its network is one that the deployment allows."""

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from serving.errors import ConfigError
from serving.orchestrator.tools.public_addresses import AddressRefusedError, PublicAddresses, is_public
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.orchestrator.tools.toolbox import Toolbox
from serving.orchestrator.tools.web_fetch import WebFetch
from serving.orchestrator.tools.web_search import WebSearch
from serving.settings.tools import ToolsConfig, WebConfig

SCOPE = ToolScope(tenant="t", user="u", request_id="r", deadline=time.monotonic() + 3600)
LOOPBACK = ("127.0.0.0/8",)
PAGE = b"<html><head><title>Looms</title><script>bad()</script></head><body><p>A loom weaves.</p></body></html>"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "100.100.100.200"),
        *("169.254.169.254", "168.63.129.16", "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
        # IPv4 within IPv6: mapped, compatible, 6to4, Teredo, NAT64.
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "64:ff9b::10.0.0.1"),
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",  # of 10.0.0.1
        *("64:ff9b:1::101:101", "64:ff9b:1:a00:0:100:808:808"),  # a network's own NAT64, of 10.0.0.1
    ],
)
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::1", "fe80::1%lo", "0"]
)
async def test_no_way_of_writing_this_machine_is_resolved(host: str) -> None:
    with pytest.raises(AddressRefusedError):
        await PublicAddresses().resolve("http", host, None)


async def test_a_name_with_one_address_inside_is_refused_and_the_address_that_was_judged_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"mixed.test": ["1.1.1.1", "10.0.0.1"], "public.test": ["1.1.1.1", "8.8.8.8"]}

    async def known(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", known)
    with pytest.raises(AddressRefusedError, match="not on the public internet"):
        await PublicAddresses().resolve("https", "mixed.test", None)
    assert await PublicAddresses().resolve("https", "public.test", None) == "1.1.1.1"
    with pytest.raises(AddressRefusedError, match="port 22"):
        await PublicAddresses().resolve("http", "public.test", 22)
    with pytest.raises(AddressRefusedError, match="only http"):
        await PublicAddresses().resolve("ftp", "public.test", None)


async def page(request: Request) -> Response:
    return Response(PAGE, media_type="text/html")


async def host(request: Request) -> Response:
    return PlainTextResponse(f"{request.headers['host']} {request.headers.get('accept-encoding')}")


async def redirect(request: Request) -> Response:
    return RedirectResponse(request.query_params["to"])


async def long(request: Request) -> Response:
    return PlainTextResponse("x" * 100_000)


async def compressed(request: Request) -> Response:
    return Response(b"\x1f\x8b", media_type="text/plain", headers={"content-encoding": "gzip"})


async def picture(request: Request) -> Response:
    return Response(b"...", media_type="image/png")


async def encoded(request: Request) -> Response:
    charset, html = request.query_params["charset"], "html" in request.query_params
    words = "привет, мир" if charset == "windows-1251" else "plain words"
    text = f"<html><body><p>{words}</p></body></html>" if html else words
    body = text.encode("cp1251") if charset == "windows-1251" else text.encode()
    return Response(body, headers={"content-type": f"text/{'html' if html else 'plain'}; charset={charset}"})


async def search(request: Request) -> Response:
    if request.headers.get("authorization") != "Bearer key":
        return Response(status_code=401)
    if request.query_params["q"] == "broken":
        return PlainTextResponse("no JSON")
    results = [
        {
            "url": f"https://example.org/{n}",
            "title": f"Page {n}",
            "content": f"About {request.query_params['q']}",
            "score": n,
        }
        for n in range(20)
    ]
    return JSONResponse({"query": "", "results": results if request.query_params["q"] != "nothing" else []})


@contextlib.asynccontextmanager
async def web() -> AsyncIterator[str]:
    endpoints = (page, host, redirect, long, compressed, picture, encoded, search)
    app = Starlette(routes=[Route(f"/{endpoint.__name__}", endpoint) for endpoint in endpoints])
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def fetched(url: str, allowed: tuple[str, ...] = LOOPBACK) -> ToolResult:
    fetch = WebFetch(PublicAddresses(allowed), max_bytes=10_000, seconds=120)
    return await fetch.run({"url": url}, SCOPE)


async def test_a_page_comes_as_text_with_where_it_came_from() -> None:
    async with web() as url:
        result = await fetched(f"{url}/page")
        assert not result.is_error
        assert "A loom weaves." in result.text
        assert "bad()" not in result.text
        assert result.text.startswith(f"{url}/page (status 200)")
        assert result.facts == {"url": f"{url}/page", "status": 200, "type": "text/html", "whole": True}
        moved = await fetched(f"{url}/redirect?to=/page")
        assert moved.facts["url"] == f"{url}/page"


async def test_the_connection_goes_to_the_judged_address_under_the_name_that_was_asked_for() -> None:
    async with web() as url:
        port = url.rpartition(":")[2]
        result = await fetched(f"http://localhost:{port}/host", allowed=("127.0.0.0/8", "::1/128"))
        assert result.text.endswith(f"localhost:{port} identity")


@pytest.mark.parametrize("more", ["", "&html"])
async def test_a_page_is_read_in_the_encoding_that_its_header_names(more: str) -> None:
    async with web() as url:
        assert "привет, мир" in (await fetched(f"{url}/encoded?charset=windows-1251{more}")).text


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "idna", "undefined", "zlib", "nothing", "utf-7"])
async def test_an_encoding_that_is_none_of_the_webs_is_not_used(charset: str) -> None:
    async with web() as url:
        assert "plain words" in (await fetched(f"{url}/encoded?charset={charset}")).text


async def test_the_name_that_is_resolved_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def known(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        raise OSError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", known)
    for name in ("faß.de", "xn--fa-hia.de"):
        assert "cannot be resolved" in (await fetched(f"https://{name}/", ())).text
    assert asked == ["xn--fa-hia.de"] * 2  # and not fass.de, as Python's own rules have it


async def test_a_redirect_inside_is_refused_as_a_fetch_would_be() -> None:
    async with web() as url:
        for inside in (
            "http://127.0.0.2:1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]/",
            "http://10.0.0.1/",
        ):
            result = await fetched(f"{url}/redirect?to={inside}", allowed=("127.0.0.1/32",))
            assert result.is_error, inside
            assert "is not on the public internet" in result.text
        away = await fetched(f"{url}/redirect?to=file:///etc/passwd")
        assert away.is_error
        assert "root:" not in away.text


async def test_a_server_that_allows_no_network_fetches_nothing_of_its_own() -> None:
    async with web() as url:
        result = await fetched(f"{url}/page", allowed=())
        assert result.is_error
        assert "is not on the public internet" in result.text


@pytest.mark.parametrize(
    ("path", "reason"),
    [("compressed", "compressed"), ("picture", "image/png, which is not read"), ("nowhere", "status 404")],
)
async def test_what_cannot_be_read_is_an_error_that_says_so(path: str, reason: str) -> None:
    async with web() as url:
        result = await fetched(f"{url}/{path}")
        assert result.is_error
        assert reason in result.text


async def test_a_long_page_is_read_up_to_its_bound() -> None:
    async with web() as url:
        result = await fetched(f"{url}/long")
        assert result.text.count("x") == 10_000
        assert "only its beginning" in result.text


@pytest.mark.parametrize(
    "url", ["http://user:pass@example.org/", "example.org", "http://", "javascript:alert(1)", "http://[::"]
)
async def test_what_is_no_address_of_a_page_is_refused(url: str) -> None:
    assert (await fetched(url)).is_error


async def test_search_gives_the_endpoints_results(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web() as url:
        tool = WebSearch(f"{url}/search", token="key", seconds=120)
        result = await tool.run({"query": "looms", "max_results": 2}, SCOPE)
        assert result.text == (
            "1. Page 0\nhttps://example.org/0\nAbout looms\n\n2. Page 1\nhttps://example.org/1\nAbout looms"
        )
        assert [found["url"] for found in result.facts["results"]] == ["https://example.org/0", "https://example.org/1"]
        assert (await tool.run({"query": "nothing"}, SCOPE)).text == "nothing was found"
        assert (await tool.run({"query": "broken"}, SCOPE)).is_error
        unknown = await WebSearch(f"{url}/search", seconds=120).run({"query": "looms"}, SCOPE)
        assert "status 401" in unknown.text
    assert (await tool.run({"query": "looms"}, SCOPE)).is_error


def test_the_web_is_off_where_the_deployment_does_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Toolbox(ToolsConfig()).registry.groups == ("calculator", "dates")
    both = Toolbox(ToolsConfig(web=WebConfig(search_url="http://search.lan/search", fetch=True)))
    assert both.registry.group("web_search") == ("web_search", "web_fetch")
    assert Toolbox(ToolsConfig(web=WebConfig(fetch=True))).registry.group("web_fetch") == ("web_fetch",)
    monkeypatch.delenv("WEFT_TEST_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="WEFT_TEST_TOKEN"):
        Toolbox(ToolsConfig(web=WebConfig(search_url="http://s/", search_token_variable="WEFT_TEST_TOKEN")))
