"""Responses over a scripted engine: what is told, what is kept, and what is refused."""

import asyncio
import json
from typing import Any

import pytest

from serving.engine.request import FinishReason
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from tests.fakes.engine import Script
from tests.serving.api.conftest import WINDOW, ApiMaker, Body
from tests.serving.api.responses.asking import ask, create, prompt, refused, stream, texts

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SUM = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'


async def test_a_stream_joined_is_the_whole_answer_and_its_events_are_numbered(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Grüß dich", chunk=2))
    whole = await create(api)
    events = await stream(api)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event["type"] for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == texts(whole["output"])[0] == texts(events[-1]["response"]["output"])[0] == "Grüß dich"
    assert whole["status"] == events[-1]["response"]["status"] == "completed"
    assert whole["usage"] == events[-1]["response"]["usage"]
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + whole["usage"]["output_tokens"]


async def test_a_response_goes_on_from_another_and_instructions_do_not(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("One."), make_api.says("Two."), make_api.says("Three."))
    first = await create(api, "a", instructions="Be short.")
    second = await create(api, "b", previous_response_id=first["id"])
    assert prompt(api).count("Be short.") == 0
    expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nOne.<|im_end|>\n<|im_start|>user\nb<|im_end|>"
    assert expected in prompt(api)
    again = await create(api, "b, please", previous_response_id=first["id"])  # an edit
    assert "Two." not in prompt(api)
    assert again["id"] != second["id"]
    kept = await ask(api, "GET", f"/v1/responses/{second['id']}")
    assert texts(kept["output"]) == ["Two."]
    items = await ask(api, "GET", f"/v1/responses/{second['id']}/input_items")
    assert [item["content"][0]["text"] for item in items["data"]] == ["b"]


async def test_what_is_not_to_be_stored_is_not(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("One."))
    kept = await create(api, "a")
    made = await create(api, "b", store=False, previous_response_id=kept["id"])
    assert "One." in prompt(api)
    await ask(api, "GET", f"/v1/responses/{made['id']}", 404)
    assert made["store"] is False


async def test_a_function_is_called_by_the_client_and_its_result_comes_with_the_next_request(
    make_api: ApiMaker,
) -> None:
    api = make_api(make_api.says(f"Let me see.{CALL}", chunk=5), make_api.says("It is 4."))
    events = await stream(api, "1+3?", tools=[ADD])
    message, call = events[-1]["response"]["output"]
    assert (message["type"], call["type"], call["name"], call["status"]) == (
        "message",
        "function_call",
        "add",
        "completed",
    )
    assert json.loads(call["arguments"]) == {"a": 1}
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert "".join(pieces) == done[0]["arguments"] == call["arguments"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "4"}
    before = events[-1]["response"]["id"]
    second = await create(api, [result], tools=[ADD], previous_response_id=before)
    assert texts(second["output"]) == ["It is 4."]
    by_parent = prompt(api)
    # The same without a store: the client sends all of it.
    question = {"role": "user", "content": "1+3?"}
    await create(api, [question, message, call, result], tools=[ADD], store=False)
    assert prompt(api) == by_parent
    error = await refused(api, 400, tools=[ADD], previous_response_id=before)
    assert error["param"] == "input"  # a call without its result
    assert call["call_id"] in error["message"]


@pytest.mark.parametrize("sent_again", [False, True])
async def test_a_function_that_a_limit_kept_from_being_called_does_not_end_the_conversation(
    make_api: ApiMaker, sent_again: bool
) -> None:
    api = make_api(make_api.says(f"{SUM}{CALL}"), make_api.says("Let us see."))
    tools = [{"type": "calculator"}, ADD]
    made = await create(api, "6*7?", tools=tools, max_tool_calls=1)
    assert made["status"] == "completed", "one call is allowed"
    api = make_api(make_api.says(f"{SUM}{SUM}{CALL}"), make_api.says("Let us see."), make_api.says("Yes."))
    made = await create(api, "6*7?", tools=tools, max_tool_calls=1)
    assert made["incomplete_details"]["reason"] == "max_tool_calls"
    *_, call = made["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    if sent_again:
        items = [{"role": "user", "content": "6*7?"}, *made["output"], {"role": "user", "content": "Well?"}]
        again = await create(api, items, tools=tools, store=False)
    else:
        again = await create(api, "Well?", tools=tools, previous_response_id=made["id"])
        assert prompt(api).count("not run: the turn would run more than 1 calls") == 3
    assert texts(again["output"]) == ["Let us see."]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "of the client's"}
    await create(api, [result], tools=tools, previous_response_id=made["id"])
    assert "of the client's" in prompt(api), "a result that comes nevertheless takes the place"


async def test_a_tool_of_the_server_runs_within_the_response_and_is_kept_with_its_result(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(SUM), make_api.says("It is 42."), make_api.says("Yes."))
    events = await stream(api, "6*7?", tools=[{"type": "calculator"}])
    made = events[-1]["response"]
    call, message = made["output"]
    assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "weft", "calculator")
    assert (call["status"], call["output"], call["error"]) == ("completed", "42", None)
    assert not [name for item in made["output"] for name in item if name.startswith("_")]
    assert texts([message]) == ["It is 42."]
    kinds = [event["type"] for event in events if event.get("output_index") == 0]
    assert kinds == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]
    within = prompt(api)
    await create(api, "sure?", tools=[{"type": "calculator"}], previous_response_id=made["id"])
    assert prompt(api)[: len(within)] == within  # the pages of the turn before are shared
    assert (await ask(api, "GET", f"/v1/responses/{made['id']}"))["output"] == made["output"]


async def test_a_tool_of_the_server_is_forced_by_its_type_as_it_is_offered(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(SUM), make_api.says("It is 42."))
    tools = [{"type": "calculator"}, {"type": "dates"}]
    made = await create(api, "6*7?", tools=tools, tool_choice={"type": "calculator"})
    assert made["tool_choice"] == {"type": "builtin", "name": "calculator"}
    assert [request.grammar is not None for request in api.engine.requests] == [True, False]
    grammar = api.engine.requests[0].grammar
    assert grammar is not None
    assert "calculator" in grammar.text
    assert "dates" not in grammar.text
    await create(api, "6*7?", tools=tools, tool_choice={"type": "builtin", "name": "calculator"})


async def test_a_tool_that_loops_ends_the_response_with_its_reason(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(SUM))
    made = await create(api, tools=[{"type": "calculator"}], max_tool_calls=2)
    assert made["status"] == "incomplete"
    assert made["incomplete_details"]["reason"] in ("max_tool_calls", "repeated_call")
    api.engine.scripts = [make_api.says("Fine.")]
    assert (await create(api, "go on", previous_response_id=made["id"]))["status"] == "completed"


async def test_an_answer_that_is_cut_off_says_why(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("a long answer"))
    made = await create(api, max_output_tokens=6)
    assert (made["status"], made["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert texts(made["output"]) == ["a long"]
    assert made["output"][0]["status"] == "incomplete"
    assert (await stream(api, max_output_tokens=6))[-1]["type"] == "response.incomplete"


async def test_a_verbosity_that_would_do_nothing_is_refused_by_name(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("fine"))
    assert (await create(api, text={"verbosity": "medium"}))["status"] == "completed"
    reply = await api.post("/v1/responses", {"input": "hi", "text": {"verbosity": "low"}})
    assert reply.json()["error"]["message"] == 'text.verbosity must be "medium", not "low"'


async def test_an_answer_follows_a_schema(make_api: ApiMaker) -> None:
    api = make_api(make_api.says('{"n": 1}'))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = await create(api, text={"format": {"type": "json_schema", "name": "out", "schema": schema}})
    grammar = api.engine.requests[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema
    assert made["text"]["format"]["name"] == "out"


async def test_what_does_not_fit_is_left_out_and_told_or_refused(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    parent: dict[str, str] = {}
    for number in range(4):
        made = await create(api, f"{number} " + "x" * 900, truncation="auto", max_output_tokens=16, **parent)
        parent = {"previous_response_id": made["id"]}
    assert made["left_out"] == []
    made = await create(api, "y" * 900, truncation="auto", max_output_tokens=16, **parent)
    assert [left["kind"] for left in made["left_out"]]
    assert len(api.engine.requests[-1].prompt_token_ids) < WINDOW
    error = await refused(api, 400, input="y" * 900, max_output_tokens=16, **parent)
    assert error["code"] == "context_length_exceeded"


async def test_what_is_refused_before_it_begins_leaves_nothing(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    made = await ask(api, "POST", "/v1/conversations", json={})
    for streamed in (False, True):
        error = await refused(api, 400, temperature=9, conversation=made["id"], stream=streamed)
        assert error["param"] == "temperature"
        assert (await refused(api, 400, input="x" * WINDOW, conversation=made["id"], stream=streamed))["code"]
    items = await ask(api, "GET", f"/v1/conversations/{made['id']}/items")
    assert items["data"] == []
    await create(api, conversation=made["id"])  # and it is free


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "most"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0]"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs"]}]}, "tools[0]"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://x"}]}, "tools[0].server_url"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "calculator"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "image_generation"}}, "tool_choice"),
        ({"store": False, "background": True}, "store"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"stop": ["x"]}, "stop"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(make_api: ApiMaker, fields: Body, param: str) -> None:
    error = await refused(make_api(make_api.says("ok")), 400, **fields)
    assert error["param"] == param


async def test_an_engine_that_fails_ends_the_response_and_keeps_what_was_said(make_api: ApiMaker) -> None:
    failing = Script(token_ids=make_api.ids("abcdef"), finish=FinishReason.ERROR, error="device lost")
    api = make_api(failing)
    events = await stream(api)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert failed["error"]["message"] == "device lost"
    assert (await ask(api, "GET", f"/v1/responses/{failed['id']}"))["status"] == "failed"
    reply = await api.post("/v1/responses", {"input": "hi"})
    assert reply.status_code == 500


async def test_a_response_is_deleted_and_what_follows_it_stays(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("One."), make_api.says("Two."), make_api.says("Three."))
    first = await create(api, "a")
    second = await create(api, "b", previous_response_id=first["id"])
    gone = await ask(api, "DELETE", f"/v1/responses/{first['id']}")
    assert gone == {"id": first["id"], "object": "response", "deleted": True}
    await ask(api, "GET", f"/v1/responses/{first['id']}", 404)
    await create(api, "c", previous_response_id=second["id"])
    assert "One." not in prompt(api)
    assert "Two." in prompt(api)


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
async def test_a_response_that_is_not_there_is_a_404(make_api: ApiMaker, path: str) -> None:
    api = make_api()
    method = "POST" if path == "/cancel" else "GET"
    error = await ask(api, method, f"/v1/responses/resp_{'0' * 48}{path}", 404)
    assert error["error"]["code"] == "response_not_found"


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("parent", [f"resp_{'0' * 48}", "resp_x", "../ü\n"])
async def test_a_parent_that_is_not_there_is_told_by_its_parameter(
    make_api: ApiMaker, parent: str, stored: bool
) -> None:
    error = await refused(make_api(), 404, previous_response_id=parent, store=stored)
    assert (error["param"], error["code"]) == ("previous_response_id", "response_not_found")


async def test_a_conversation_that_is_not_there_is_told_by_its_parameter(make_api: ApiMaker) -> None:
    error = await refused(make_api(), 404, conversation=f"conv_{'0' * 48}")
    assert (error["param"], error["code"]) == ("conversation", "conversation_not_found")


class Library:
    """A file search that always finds one passage."""

    name = "file_search"
    description = "Searches."
    idempotent = True

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object"}
        self.settings: Any = None

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        self.settings = scope.settings
        found = {"marker": "12345", "file_id": "file-1", "filename": "a.txt", "score": 1.0, "text": "It rains."}
        return ToolResult(text="<document>It rains.</document>", facts={"results": [found]})


class EndlessLibrary(Library):
    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError


async def test_what_a_search_found_is_cited_beside_the_text(make_api: ApiMaker) -> None:
    search = '<tool_call>{"name": "file_search", "arguments": {"query": "weather"}}</tool_call>'
    api = make_api(
        make_api.says(search), make_api.says("It rains [12345]. So [99999].", chunk=3), make_api.says("Yes.")
    )
    library = Library()
    api.service.toolbox.registry.add(library)
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    events = await stream(api, "weather?", tools=tools)
    made = events[-1]["response"]
    call, message = made["output"]
    assert library.settings == {"vector_store_ids": ["vs_1"]}
    assert (call["type"], call["queries"], call["results"]) == ("file_search_call", ["weather"], None)
    part = message["content"][0]
    assert part["text"] == "It rains. So [99999]."
    citation = {"type": "file_citation", "index": 8, "file_id": "file-1", "filename": "a.txt"}
    assert part["annotations"] == [citation]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == part["text"]
    added = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert [(event["annotation_index"], event["annotation"]) for event in added] == [(0, citation)]
    path = f"/v1/responses/{made['id']}?include=file_search_call.results"
    assert (await ask(api, "GET", path))["output"][0]["results"][0]["text"] == "It rains."
    await create(api, "sure?", tools=tools, previous_response_id=made["id"])
    assert "It rains [12345]. So" in prompt(api)  # as the model wrote it: the pages are shared


async def test_settings_of_a_search_are_checked_before_the_turn(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    api.service.toolbox.registry.add(Library())
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": {"type": "no"}}
    error = await refused(api, 400, tools=[tool])
    assert error["param"].startswith("tools[0].filters")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "file_search_call", "queries": ["x"], "results": ["no object"]},
        {"type": "code_interpreter_call", "container_id": "c", "outputs": [1]},
    ],
)
async def test_results_that_are_no_objects_are_refused(make_api: ApiMaker, item: Any) -> None:
    error = await refused(make_api(make_api.says("ok")), 400, input=[item, {"role": "user", "content": "hi"}])
    assert error["param"].startswith("input[0]")


async def test_what_a_client_says_that_a_search_found_is_cited_only_where_it_could_have(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("It rains [12345]."))
    odd = [{"marker": ["12345"]}, {"marker": "12345"}, {"marker": "12345", "file_id": 1, "filename": "a"}]
    made = await create(
        api, [{"type": "file_search_call", "queries": ["x"], "results": odd}, {"role": "user", "content": "hi"}]
    )
    assert texts(made["output"]) == ["It rains [12345]."]


async def test_a_fault_before_the_model_is_asked_leaves_no_conversation_locked(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(make_api.says("ok"))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    with monkeypatch.context() as broken:
        broken.setattr("serving.api.responses.made.turn_request", lambda *_: 1 / 0)
        assert (await refused(api, 500, conversation=conversation))["code"] == "internal_error"
    await create(api, conversation=conversation)


async def test_a_client_that_leaves_before_the_model_is_asked_leaves_no_conversation_locked(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(make_api.says("ok"))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    begun = asyncio.Event()

    async def never(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as slow:
        slow.setattr("serving.api.responses.made.container_of", never)
        leaving = asyncio.create_task(api.post("/v1/responses", {"input": "hi", "conversation": conversation}))
        await begun.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    await create(api, conversation=conversation)


async def test_arguments_that_a_model_got_wrong_are_a_result_that_it_reads(make_api: ApiMaker) -> None:
    wrong = '<tool_call>{"name": "file_search", "arguments": {"queries": 5}}</tool_call>'
    api = make_api(make_api.says(wrong), make_api.says("Sorry."))
    library = Library()
    library.parameters = {"type": "object", "properties": {"queries": {"type": "array"}}}
    api.service.toolbox.registry.add(library)
    made = await create(api, tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}])
    assert (made["output"][0]["status"], made["output"][0]["queries"]) == ("failed", [])
    assert texts(made["output"]) == ["Sorry."]


async def test_a_tool_that_takes_all_the_time_ends_the_turn_and_fails_nothing(make_api: ApiMaker) -> None:
    api = make_api(
        make_api.says('<tool_call>{"name": "file_search", "arguments": {}}</tool_call>'), make_api.says("Oh.")
    )
    api.service.toolbox.registry.add(EndlessLibrary())
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    made = await create(api, tools=tools, timeout_seconds=0.05)
    assert (made["status"], made["incomplete_details"]["reason"]) == ("incomplete", "time_budget")


async def test_a_user_cannot_be_named_where_the_conversation_began_without(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    error = await refused(api, 404, conversation=conversation, safety_identifier="ann")
    assert error["code"] == "user_not_of_conversation"
    of_ann = (await ask(api, "POST", "/v1/conversations", json={"user": "ann"}))["id"]
    await create(api, conversation=of_ann, safety_identifier="ann")
    error = await refused(api, 404, conversation=of_ann, safety_identifier="ben")
    assert error["code"] == "conversation_not_found"
