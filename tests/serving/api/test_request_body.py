import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from serving.api.chat_body import ChatBody
from serving.api.request_body import BODY_SECONDS, read_typed
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
