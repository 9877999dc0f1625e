"""Files that programs wrote, on the page: saved with the page's key, pictures shown."""

import base64
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import Tab, ask, finished
from tests.serving.api.page.response_events import begin, end, message, tell
from tests.serving.api.page.scripted_chat import ScriptedChat

CODE = {"type": "code_interpreter", "functions": [{"name": "code_interpreter", "description": "Runs Python."}]}
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def file(name: str, kind: str = "application/octet-stream") -> dict[str, Any]:
    return {"container_id": "c1", "file_id": f"id-{name}", "filename": name, "bytes": 2048, "mime_type": kind}


def call_of(*files: dict[str, Any]) -> dict[str, Any]:
    outputs = [{"type": "logs", "logs": "done"}]
    made = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "c1", "status": "completed"}
    return {**made, "code": "draw()", "outputs": outputs, "files": list(files)}


@pytest.fixture
def page(tab: Tab, chat: ScriptedChat) -> Page:
    chat.tools = [CODE]
    tab.page.evaluate("sessionStorage.setItem('weft.apiKey', 'page-key')")
    tab.page.reload()
    tab.page.get_by_role("button", name="Code").click()
    return tab.page


def answer(page: Page, chat: ScriptedChat, *files: dict[str, Any]) -> None:
    exchange = ask(page, chat, "Draw it")
    begin(exchange)
    tell(exchange, "response.output_item.done", output_index=0, item=call_of(*files))
    cited = {"type": "container_file_citation", "container_id": "c1", "file_id": "id-a.csv", "filename": "a.csv"}
    said = message("It is in a.csv.", [{**cited, "start_index": 9, "end_index": 14}])
    end(exchange, [call_of(*files), said])
    expect(finished(page)).to_be_visible()


def test_a_written_file_is_saved_with_the_pages_key(page: Page, chat: ScriptedChat, tmp_path: Path) -> None:
    chat.written["id-a.csv"] = b"a,b"
    answer(page, chat, file("a.csv"))
    save = page.get_by_role("button", name="Save a.csv")
    expect(save).to_contain_text("2.0 KiB")
    expect(page.locator(".tool-result code")).to_have_text("done")
    with page.expect_download() as download:
        save.click()
    download.value.save_as(tmp_path / "saved")
    assert (download.value.suggested_filename, (tmp_path / "saved").read_bytes()) == ("a.csv", b"a,b")
    expect(page.locator(".citation")).to_have_count(0)  # there is no passage to open
    page.reload()
    expect(page.get_by_role("button", name="Save a.csv")).to_be_visible()


def test_a_models_link_to_a_file_saves_it(page: Page, chat: ScriptedChat, tmp_path: Path) -> None:
    chat.written["id-my a.csv"] = b"a,b"
    exchange = ask(page, chat, "Draw it")
    begin(exchange)
    cited = {"type": "container_file_citation", "container_id": "c1", "file_id": "id-my a.csv", "filename": "my a.csv"}
    text = "Here: [the *sums*](sandbox:/mnt/data/my%20a.csv), [no file](/mnt/data/other.csv)"
    end(exchange, [call_of(), message(text, [{**cited, "start_index": 19, "end_index": 47}])])
    with page.expect_download() as download:
        page.get_by_role("button", name="the sums").click()
    download.value.save_as(tmp_path / "saved")
    assert (download.value.suggested_filename, (tmp_path / "saved").read_bytes()) == ("my a.csv", b"a,b")
    page.get_by_role("button", name="no file").click()
    expect(page.get_by_text("The server named no such file of this answer.")).to_be_visible()


def test_a_picture_is_shown_and_what_is_only_called_one_is_not(page: Page, chat: ScriptedChat) -> None:
    chat.written |= {"id-dot": DOT, "id-page.png": b"<svg onload='alert(1)'>"}
    answer(page, chat, file("dot", "image/png"), file("page.png"))
    picture = page.get_by_role("img", name="dot", exact=True)
    expect(picture).to_have_js_property("naturalWidth", 1)
    assert (picture.get_attribute("src") or "").startswith("data:image/png;base64,")
    expect(page.locator(".tool-files img")).to_have_count(1)


def test_a_file_that_has_expired_is_said_to_be_gone(page: Page, chat: ScriptedChat) -> None:
    answer(page, chat, file("a.csv"))
    page.get_by_role("button", name="Save a.csv").click()
    expect(page.get_by_text("a.csv is no longer on the server.")).to_be_visible()
