import asyncio
import json
import threading

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.request_body import BODY_SECONDS, PARSED_IN_THREAD_ABOVE, body_bytes_for, read_typed
from tests.serving.api.virtual_time import run_in_virtual_time


def test_a_body_that_trickles_in_is_given_up_after_a_minute() -> None:
    async def receive() -> Message:
        await asyncio.sleep(20)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def test() -> float:
        headers = [(b"content-type", b"application/json")]
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        with pytest.raises(HTTPException) as caught:
            await read_typed(request, ChatBody, 1000)
        assert caught.value.status_code == 408
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(test()) == BODY_SECONDS


@pytest.mark.parametrize("size", [PARSED_IN_THREAD_ABOVE, PARSED_IN_THREAD_ABOVE + 1])
async def test_a_large_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    threads: list[threading.Thread] = []

    def loads(text: str, **options: object) -> object:
        threads.append(threading.current_thread())
        return json.JSONDecoder().decode(text)

    monkeypatch.setattr("serving.api.strict_json.json.loads", loads)
    body = b'{"prompt": "a"}'.ljust(size)

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    request = Request({"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}, receive)
    assert (await read_typed(request, CompletionBody, size)).prompt == "a"
    assert (threads == [threading.main_thread()]) == (size <= PARSED_IN_THREAD_ABOVE)


def test_the_largest_body_follows_the_window() -> None:
    assert [body_bytes_for(window) for window in (2, 32_768, 131_072, 1 << 20)] == [1 << 20, 1 << 20, 4 << 20, 32 << 20]
