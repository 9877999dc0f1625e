"""How the chat page's files are served, and what must hold of them as files."""

import re

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from serving.api.page import CONTENT_SECURITY_POLICY, STATIC_DIRECTORY, page_routes


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


@pytest.mark.parametrize("path", ["/", "/static/js/page.js", "/static/images/mark.svg"])
def test_every_file_carries_the_security_headers(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "'unsafe" not in CONTENT_SECURITY_POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"
    assert "microphone=()" in response.headers["permissions-policy"]


def test_own_files_are_revalidated_and_vendored_ones_kept(client: TestClient) -> None:
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    vendored = next(STATIC_DIRECTORY.glob("vendor/*/*.js")).relative_to(STATIC_DIRECTORY)
    assert "immutable" in client.get(f"/static/{vendored.as_posix()}").headers["cache-control"]


def test_nothing_outside_the_static_folder_is_served(client: TestClient) -> None:
    for path in ("/static/../page.py", "/static/%2e%2e/page.py", "/static/js", "/static/nothing.js"):
        assert client.get(path).status_code == 404


def test_the_page_names_every_module_and_nothing_elsewhere() -> None:
    index = (STATIC_DIRECTORY / "index.html").read_text(encoding="utf-8")
    preloaded = set(re.findall(r'rel="modulepreload" href="/static/([^"]+)"', index))
    present = {path.relative_to(STATIC_DIRECTORY).as_posix() for path in STATIC_DIRECTORY.glob("*/**/*.js")}
    assert preloaded == present
    assert re.findall(r'(?:src|href)="(?!/static/|#)([^"]*)"', index) == []
    assert re.findall(r"<[^>]*\s(?:style|on\w+)=", index) == []


def test_every_vendored_module_has_its_licence_beside_it() -> None:
    folders = [path for path in (STATIC_DIRECTORY / "vendor").iterdir() if path.is_dir()]
    assert folders
    assert all((folder / "LICENSE").is_file() for folder in folders)
