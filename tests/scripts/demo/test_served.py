"""A dialogue as a chat completion's request, and its answer as the model would have written it."""

import json
from typing import Any

import httpx

from scripts.demo import served
from scripts.demo.dialogue import Conversation, Exchange, ToolCall

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}], "content": None}


def test_results_answer_the_calls_before_them() -> None:
    dialogue = Conversation(tools=[{"type": "function", "function": WEATHER}])
    calls = tuple(ToolCall("get_weather", {"city": city}, "sun") for city in ("Bern", "Rome"))
    dialogue.add(Exchange("weather?", "Sun.", calls=calls))
    body = served.request_of(dialogue)
    assert [tool["function"]["strict"] for tool in body["tools"]] == [True]
    ids = [message["tool_calls"][0]["id"] for message in body["messages"] if message.get("tool_calls")]
    assert ids == ["call_1", "call_2"]
    assert [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"] == ids
    assert "id" not in dialogue.messages[1]["tool_calls"][0]  # pyright: ignore[reportIndexIssue]


def test_an_answer_reads_as_the_model_writes_it() -> None:
    assert served.text_of({"content": "Sun."}) == "Sun."
    assert served.text_of(called("get_weather", {"city": "Zürich"})) == (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'
    )


def test_a_server_that_only_says_hello_gets_no_points() -> None:
    def reply(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"choices": [{"message": {"content": "hello"}}]})

    with httpx.Client(base_url="http://weft", transport=httpx.MockTransport(reply)) as client:
        scores = served.strict_scores(client, count=2, seed=1)
    assert {name: (score.right, score.total) for name, score in scores.items()} == {
        f"{name}, strict": (0, 2) for name in served.STRICT_SKILLS
    }
