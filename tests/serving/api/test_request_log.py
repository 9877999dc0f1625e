import json
import logging

import pytest

from serving.observability.logs import JsonFormatter
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker, chat_body

SECRET = "xyzzy"


async def test_a_request_is_one_line_and_no_line_has_a_users_text(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="serving")
    api = make_api(make_api.says(SECRET), Script(token_ids=[], raises=KeyError(SECRET)))
    message = [{"role": "user", "content": SECRET}]
    replies = [
        await api.post("/v1/chat/completions", chat_body(messages=message, user=SECRET)),
        await api.post("/v1/chat/completions", chat_body(**{SECRET: SECRET})),
        await api.post("/v1/chat/completions", chat_body(temperature=SECRET)),
        await api.post("/v1/chat/completions", chat_body(messages=message), headers={"x-request-id": SECRET}),
        await api.get(f"/{SECRET}?{SECRET}={SECRET}"),
        await api.get(f"/v1/models/{SECRET}"),
        await api.get("/health/ready"),
    ]
    formatter = JsonFormatter()
    lines = [json.loads(formatter.format(record)) for record in caplog.records if record.name.startswith("serving")]
    assert not [line for line in lines if SECRET in json.dumps(line)]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [200, 400, 400, 500, 404, 404]
    assert [line["request_id"] for line in requests] == [reply.headers["x-request-id"] for reply in replies[:6]]
    assert [line["code"] for line in requests] == [
        None,
        "unknown_parameter",
        "invalid_value",
        "internal_error",
        "unknown_url",
        "model_not_found",
    ]
    assert [line["route"] for line in requests][-3:] == ["/v1/chat/completions", None, "/v1/models/{name:path}"]
    assert [line["event"] for line in lines if line["level"] == "error"] == ["request failed"]
