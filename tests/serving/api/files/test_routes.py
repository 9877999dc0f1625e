"""Files are their tenant's own, bounded, and never a path."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access import AccessConfig, AuthConfig
from serving.config import FilesConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import Api, ApiMaker

FILES = "/v1/files"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def api(make_api: ApiMaker, folder: Path) -> Api:
    limits = FilesConfig(folder=folder, max_file_bytes=1000, max_tenant_bytes=2500, max_tenant_files=3)
    return make_api(files=limits)


async def _upload(
    api: Api, content: bytes, name: str = "a.jsonl", purpose: str = "batch", **more: Any
) -> httpx.Response:
    async with api.client() as client:
        return await client.post(FILES, files={"file": (name, content)}, data={"purpose": purpose}, **more)


async def _delete(api: Api, path: str) -> httpx.Response:
    async with api.client() as client:
        return await client.delete(path)


async def test_a_file_comes_back_as_it_was_until_it_is_deleted(api: Api, folder: Path) -> None:
    content = bytes(range(256))
    made = (await _upload(api, content)).json()
    assert (made["object"], made["bytes"], made["filename"], made["purpose"]) == ("file", 256, "a.jsonl", "batch")
    path = f"{FILES}/{made['id']}"
    assert (await api.get(path)).json() == made
    reply = await api.get(f"{path}/content")
    assert reply.content == content
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"].startswith("attachment")
    assert (await _delete(api, path)).json() == {"id": made["id"], "object": "file", "deleted": True}
    for gone in (path, f"{path}/content"):
        assert (await api.get(gone)).json()["error"]["code"] == "file_not_found"
    assert (await _delete(api, path)).status_code == 404
    assert list((folder / "contents").iterdir()) == []


async def test_a_list_goes_page_by_page_and_by_purpose(api: Api) -> None:
    ids = [(await _upload(api, b"x", purpose=purpose)).json()["id"] for purpose in ("batch", "user_data", "batch")]
    first = (await api.get(f"{FILES}?limit=2")).json()
    assert ([file["id"] for file in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
    rest = (await api.get(f"{FILES}?limit=2&after={first['last_id']}")).json()
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    some = (await api.get(f"{FILES}?purpose=batch&order=asc")).json()
    assert [file["id"] for file in some["data"]] == [ids[0], ids[2]]
    for wrong in ("limit=0", "limit=x", "order=up"):
        assert (await api.get(f"{FILES}?{wrong}")).status_code == 400


async def test_who_deletes_what_they_list_is_told_and_does_not_take_the_first_page_for_all(api: Api) -> None:
    ids = [(await _upload(api, b"x")).json()["id"] for _ in range(3)]
    await _delete(api, f"{FILES}/{ids[2]}")
    reply = await api.get(f"{FILES}?after={ids[2]}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "after")
    reply = await api.get(f"/v1/batches?after={ids[0]}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "batch_not_found")


@pytest.mark.parametrize(
    ("given", "shown"),
    [("../../etc/passwd", "passwd"), ("..\\..\\x.jsonl", "x.jsonl"), ("/", "upload"), ("a" * 400, "a" * 255)],
)
async def test_a_files_name_is_no_path(api: Api, folder: Path, given: str, shown: str) -> None:
    made = (await _upload(api, b"x", name=given)).json()
    assert made["filename"] == shown
    assert [path.name for path in (folder / "contents").iterdir()] == [made["id"]]


@pytest.mark.parametrize("file_id", ["..%2F..%2Ffacts.sqlite", "%2Fetc%2Fpasswd", "..", "facts.sqlite", "file-%00"])
async def test_nothing_but_a_stored_file_can_be_named(api: Api, file_id: str) -> None:
    for path in (f"{FILES}/{file_id}", f"{FILES}/{file_id}/content"):
        assert (await api.get(path)).status_code in (404, 405), path


async def test_another_tenants_file_is_not_there(make_api: ApiMaker, folder: Path, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(auth=AuthConfig(keys=Path("k")))
    api = make_api(files=FilesConfig(folder=folder), gateway=Gateway(access, identity=Identity(access, keys=keys)))
    mine, other = (
        {"authorization": f"Bearer {keys.create(name, [Scope.INFERENCE]).text}"} for name in ("acme", "other")
    )
    path = f"{FILES}/{(await _upload(api, b'x', headers=mine)).json()['id']}"
    async with api.client() as client:
        for url in (path, f"{path}/content"):
            assert (await client.get(url, headers=mine)).status_code == 200
            assert (await client.get(url, headers=other)).status_code == 404
        assert (await client.delete(path, headers=other)).status_code == 404
        assert (await client.get(FILES, headers=other)).json()["data"] == []
        body = {"input_file_id": path.rsplit("/", 1)[1], "endpoint": "/v1/completions", "completion_window": "24h"}
        assert (await client.post("/v1/batches", json=body, headers=other)).status_code == 404


async def test_size_and_number_are_bounded(api: Api, folder: Path) -> None:
    reply = await _upload(api, b"x" * 1001)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "payload_too_large")
    assert (await _upload(api, b"x" * 100_000)).status_code == 413
    for _ in range(2):
        assert (await _upload(api, b"x" * 1000)).status_code == 200
    reply = await _upload(api, b"x" * 501)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "file_bytes")
    assert (await _upload(api, b"x" * 500)).status_code == 200
    assert (await _upload(api, b"")).json()["error"]["code"] == "files"
    assert len(list((folder / "contents").iterdir())) == 3


async def test_a_form_that_is_none_is_refused(api: Api) -> None:
    async with api.client() as client:
        assert (await client.post(FILES, json={})).status_code == 415
        broken = {"content-type": "multipart/form-data; boundary=x"}
        for headers in (broken, {"content-type": "multipart/form-data"}):
            assert (await client.post(FILES, content=b"--y\r\nnonsense", headers=headers)).status_code == 400
        for charset in ("undefined", "punycode", "no-such"):
            headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
            form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\xff\r\n--x--\r\n'
            assert (await client.post(FILES, content=form, headers=headers)).status_code == 400
        assert (await client.post(FILES, files={"file": b"x"})).json()["error"]["param"] == "purpose"
    assert (await _upload(api, b"x", purpose="fine-tune")).json()["error"]["param"] == "purpose"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "an hour"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[days]": "1"}, "expires_after.days"),
        ({"expires_after": "3600"}, "expires_after"),
        ({"expires_after[anchor]": ["created_at"] * 2, "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
    ],
)
async def test_an_expiry_that_is_none_is_refused(api: Api, fields: dict[str, Any], param: str) -> None:
    async with api.client() as client:
        reply = await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch", **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_file_says_when_it_expires(api: Api) -> None:
    async with api.client() as client:
        for seconds in (3600, 2592000):
            data = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": str(seconds)}
            made = (await client.post(FILES, files={"file": b"x"}, data=data)).json()
            assert made["expires_at"] == made["created_at"] + seconds
            assert (await api.get(f"{FILES}/{made['id']}")).json() == made


async def test_without_a_folder_there_are_no_files(make_api: ApiMaker) -> None:
    api = make_api()
    for path in (FILES, "/v1/batches"):
        assert (await api.get(path)).json()["error"]["code"] == "unknown_url"
