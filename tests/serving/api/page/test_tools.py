"""Tools that run on the server, on the page: chosen below the box, shown as they run, and what an answer cites."""

import pytest
from playwright.sync_api import Page, expect

from tests.serving.api.page.chat_tab import Tab, ask, finished, prose
from tests.serving.api.page.response_events import begin, end, message, tell
from tests.serving.api.page.scripted_chat import WAIT, ScriptedChat

CALCULATOR = {"type": "calculator", "functions": [{"name": "calculator", "description": "Computes."}]}
CLOCK = {
    "type": "mcp",
    "server_label": "clock",
    "functions": [{"name": "clock__now", "description": "Tells the time."}],
}
CODE = {"type": "code_interpreter", "functions": [{"name": "code_interpreter", "description": "Runs Python."}]}
PROGRAM = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "auto", "status": "in_progress"}
SEARCH = {"type": "file_search", "functions": [{"name": "file_search", "description": "Searches."}]}
CALL = {"id": "mcp_1", "type": "mcp_call", "name": "calculator", "server_label": "weft", "error": None}
BEGUN = {**CALL, "arguments": "", "output": None, "status": "in_progress"}
DONE = {**CALL, "arguments": '{"expression":"27+58"}', "output": "85", "status": "completed"}


@pytest.fixture
def page(tab: Tab, chat: ScriptedChat) -> Page:
    chat.tools = [CALCULATOR, CLOCK, CODE, SEARCH]
    tab.page.reload()
    expect(tab.page.get_by_role("button", name="Calculator")).to_be_visible()
    return tab.page


def test_a_chosen_tool_is_named_in_the_request_and_its_call_is_shown_while_it_runs(
    page: Page, chat: ScriptedChat
) -> None:
    page.get_by_role("button", name="Calculator").click()
    exchange = ask(page, chat, "What is 27 + 58?")
    assert exchange.path == "/v1/responses"
    assert exchange.body["tools"] == [{"type": "calculator"}]
    assert exchange.body["input"] == [{"role": "user", "content": "What is 27 + 58?"}]
    begin(exchange)
    tell(exchange, "response.output_item.added", output_index=0, item=BEGUN)
    tell(exchange, "response.mcp_call_arguments.delta", output_index=0, delta='{"expression":"27+58"}')
    call = page.locator(".tool-call")
    expect(call).to_contain_text("calculator")
    expect(call).to_contain_text("running")
    expect(call).to_contain_text("27+58")
    tell(exchange, "response.output_item.done", output_index=0, item=DONE)
    expect(call).not_to_contain_text("running")
    expect(call).to_contain_text("85")
    tell(exchange, "response.output_item.added", output_index=1, item=message(""))
    tell(exchange, "response.output_text.delta", output_index=1, delta="It is 85.")
    end(exchange, [DONE, message("It is 85.")])
    expect(finished(page)).to_be_visible()
    expect(prose(page)).to_have_text("It is 85.")
    page.reload()
    expect(page.locator(".tool-call")).to_contain_text("27+58")


def test_a_question_goes_on_from_the_servers_answer_and_from_the_text_where_the_server_has_it_no_more(
    page: Page, chat: ScriptedChat
) -> None:
    page.get_by_role("button", name="Calculator").click()
    exchange = ask(page, chat, "What is 27 + 58?")
    begin(exchange, "resp_1")
    end(exchange, [DONE, message("It is 85.")], response_id="resp_1")
    expect(finished(page)).to_be_visible()
    exchange = ask(page, chat, "And twice that?")
    assert exchange.body["previous_response_id"] == "resp_1"
    assert exchange.body["input"] == [{"role": "user", "content": "And twice that?"}]
    gone = {"message": "there is no response resp_1", "param": "previous_response_id", "code": "response_not_found"}
    exchange.refuse(404, gone)
    exchange = chat.exchange()
    assert "previous_response_id" not in exchange.body
    assert [message["content"] for message in exchange.body["input"]] == [
        "What is 27 + 58?", "It is 85.", "And twice that?",
    ]  # fmt: skip
    begin(exchange, "resp_2")
    end(exchange, [message("Twice that is 170.")], response_id="resp_2")
    expect(prose(page)).to_have_text("Twice that is 170.")
    page.get_by_role("button", name="Answer again").last.click()
    exchange = chat.exchange()
    assert exchange.body["previous_response_id"] == "resp_1"
    begin(exchange, "resp_3")
    end(exchange, [message("It is 170.")], response_id="resp_3")
    expect(prose(page)).to_have_text("It is 170.")


def test_a_program_is_shown_with_what_it_prints(page: Page, chat: ScriptedChat) -> None:
    page.get_by_role("button", name="Code").click()
    exchange = ask(page, chat, "Run print(6 * 7)")
    assert exchange.body["tools"] == [{"type": "code_interpreter", "container": {"type": "auto"}}]
    begin(exchange)
    tell(exchange, "response.output_item.added", output_index=0, item={**PROGRAM, "code": "", "outputs": None})
    tell(exchange, "response.code_interpreter_call_code.delta", output_index=0, delta="print(6 * 7)")
    call = page.locator(".tool-call")
    expect(call).to_contain_text("print(6 * 7)")
    expect(call).to_contain_text("running")
    done = {**PROGRAM, "status": "completed", "code": "print(6 * 7)", "outputs": [{"type": "logs", "logs": "42"}]}
    tell(exchange, "response.output_item.done", output_index=0, item=done)
    expect(call.locator(".tool-result")).to_contain_text("42")
    end(exchange, [done, message("It printed 42.")])
    expect(prose(page)).to_have_text("It printed 42.")


def test_a_tool_that_is_given_up_again_leaves_a_plain_chat(page: Page, chat: ScriptedChat) -> None:
    clock = page.get_by_role("button", name="clock")
    clock.click()
    expect(clock).to_have_attribute("aria-pressed", "true")
    clock.click()
    exchange = ask(page, chat, "Hello")
    assert exchange.path == "/v1/chat/completions"
    assert "tools" not in exchange.body
    exchange.answer("Hi.")
    expect(finished(page)).to_be_visible()


def test_a_turn_that_a_limit_ends_says_which(page: Page, chat: ScriptedChat) -> None:
    page.get_by_role("button", name="clock").click()
    exchange = ask(page, chat, "What time is it?")
    assert exchange.body["tools"] == [{"type": "mcp", "server_label": "clock"}]
    begin(exchange)
    why = {"reason": "repeated_call", "detail": "now was called 3 times with the same arguments"}
    end(exchange, [], status="incomplete", incomplete_details=why)
    expect(page.get_by_text("now was called 3 times with the same arguments")).to_be_visible()


def test_a_reload_takes_up_a_turn_with_tools(page: Page, chat: ScriptedChat) -> None:
    page.get_by_role("button", name="Calculator").click()
    exchange = ask(page, chat, "What is 27 + 58?")
    begin(exchange)
    tell(exchange, "response.output_item.added", output_index=0, item=BEGUN)
    expect(page.locator(".tool-call")).to_be_visible()
    page.reload()
    assert exchange.disconnected.wait(WAIT)
    again = chat.exchange()
    assert again.path == "/v1/responses/resp_1"
    begin(again)
    end(again, [DONE, message("It is 85.")])
    expect(prose(page)).to_have_text("It is 85.")
    expect(page.locator(".tool-call")).to_have_count(1)


def test_a_file_is_read_before_the_question_is_asked_and_a_citation_opens_its_passage(
    page: Page, chat: ScriptedChat
) -> None:
    notes = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Sea\nWhales are large."}
    page.locator("#file").set_input_files(notes)
    expect(page.get_by_role("button", name="Remove notes.md")).to_be_visible()
    assert chat.files["notes.md"] == b"# Sea\nWhales are large."
    exchange = ask(page, chat, "How large are whales?")
    assert exchange.body["tools"] == [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    begin(exchange)
    citation = {"type": "file_citation", "index": 5, "file_id": "file-notes.md", "filename": "notes.md", "page": 2}
    citation |= {"quote": "Whales are large.", "start": 6, "end": 23}
    end(exchange, [message("Large.", [citation])])
    page.get_by_role("button", name="notes.md, page 2").click()
    expect(page.locator("#passage")).to_contain_text("Whales are large.")
    expect(page.locator("#passage")).to_contain_text("characters 6 to 23")
    page.get_by_role("button", name="Close the passage").click()
    page.get_by_role("button", name="Remove notes.md").click()
    expect(page.get_by_role("button", name="Remove notes.md")).to_have_count(0)


def test_files_that_have_expired_are_not_named_to_the_model_and_the_reader_is_told(
    page: Page, chat: ScriptedChat
) -> None:
    files = [{"name": name, "mimeType": "text/plain", "buffer": b"Whales."} for name in ("a.txt", "b.txt", "c.txt")]
    page.locator("#file").set_input_files(files)
    for name in ("a.txt", "b.txt", "c.txt"):
        expect(page.get_by_role("button", name=f"Remove {name}")).to_be_visible()
    del chat.files["a.txt"]
    exchange = ask(page, chat, "How large are whales?")
    assert exchange.body["tools"] == [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    expect(page.get_by_text("No longer on the server, attach again: a.txt")).to_be_visible()
    expect(page.get_by_role("button", name="Remove a.txt")).to_have_count(0)
    for name in ("b.txt", "c.txt"):
        expect(page.get_by_role("button", name=f"Remove {name}")).to_be_visible()
    begin(exchange)
    end(exchange, [message("Large.")])
    expect(finished(page)).to_be_visible()
    chat.store_has_expired = True
    exchange = ask(page, chat, "How large?")
    assert "tools" not in exchange.body
    expect(page.get_by_role("button", name="Remove b.txt")).to_have_count(0)
    exchange.answer("Very.")


def test_a_file_that_the_server_cannot_read_is_said_to_be_so(page: Page, chat: ScriptedChat) -> None:
    chat.unreadable.add("broken.pdf")
    broken = {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"}
    page.locator("#file").set_input_files(broken)
    expect(page.get_by_text("broken.pdf: it is damaged")).to_be_visible()
    assert "broken.pdf" not in chat.files, "nobody else would delete it"
    exchange = ask(page, chat, "Hello")
    assert exchange.path == "/v1/chat/completions"
    exchange.answer("Hi.")
    expect(finished(page)).to_be_visible()
