"""The whole service, as its users meet it: through the `openai` SDK, and in a browser."""

import os
import re
import signal

import pytest
from openai import OpenAI
from playwright.sync_api import expect, sync_playwright

from tests.e2e.conftest import ServedDemo

CHROMIUM = "/usr/bin/chromium"
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture
def client(served_demo: ServedDemo) -> OpenAI:
    return OpenAI(base_url=f"{served_demo.url}/v1", api_key="unused", max_retries=0, timeout=120)


def ask(client: OpenAI, question: str, **options: object) -> str:
    reply = client.chat.completions.create(
        model="weft-demo", messages=[{"role": "user", "content": question}], temperature=0, **options
    )
    return reply.choices[0].message.content or ""


def test_the_sdk_streams_an_answer(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="weft-demo",
        messages=[{"role": "user", "content": "What is weft?"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(pieces) > 3, "the answer came in one piece"
    assert "weft" in "".join(pieces).lower()
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens >= len(pieces)
    assert "".join(pieces) == ask(client, "What is weft?")


def test_the_demo_does_what_its_page_says(client: OpenAI) -> None:
    assert "85" in ask(client, "What is 27 + 58?")
    assert "Paris" in ask(client, "What is the capital of France?")


def test_a_killed_engine_costs_a_stream_nothing(client: OpenAI, served_demo: ServedDemo) -> None:
    options = {
        "model": "weft-demo",
        "prompt": "Tell me about weft.",
        "max_tokens": 400,
        "temperature": 1.0,
        "seed": 5,
        "extra_body": {"ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False},
    }
    whole = client.completions.create(**options).choices[0]
    text, tokens = "", []
    for number, chunk in enumerate(client.completions.create(stream=True, **options)):
        if number == 3:
            os.kill(served_demo.child("engine"), signal.SIGKILL)
        if chunk.choices:
            text += chunk.choices[0].text
            tokens += (chunk.choices[0].model_extra or {}).get("token_ids") or []
    served_demo.wait_for("ready again")
    assert text == whole.text
    assert tokens == (whole.model_extra or {})["token_ids"]
    assert len(tokens) == 400


def test_an_answer_goes_on_over_a_reload_of_the_page(served_demo: ServedDemo) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(served_demo.url)
        box = page.get_by_role("textbox", name=re.compile("message", re.IGNORECASE))
        box.fill("What is weft?")
        box.press("Enter")
        answer = page.locator(".message.assistant .prose").last
        expect(answer).not_to_be_empty(timeout=60_000)
        page.reload()
        expect(page.locator(".message.assistant .footer").last).to_be_visible(timeout=60_000)
        text = answer.inner_text()
        expect(page.get_by_text("Interrupted")).to_have_count(0)
        browser.close()
    assert "weft" in text.lower()
    assert complaints == []


def test_the_page_chats_in_a_browser(served_demo: ServedDemo) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(served_demo.url)
        box = page.get_by_role("textbox", name=re.compile("message", re.IGNORECASE))
        box.fill("What is 27 + 58?")
        box.press("Enter")
        expect(page.get_by_text(re.compile("85")).first).to_be_visible(timeout=60_000)
        # Not its rate: where the machine is slow, all tokens may come in one piece, and then none is shown.
        expect(page.get_by_text(re.compile(r"to first token")).first).to_be_visible(timeout=60_000)
        browser.close()
    assert complaints == []
