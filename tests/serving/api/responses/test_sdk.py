"""The `openai` SDK and the openai-agents framework run over responses unchanged; over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import agents
import openai
import pydantic
import pytest

from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, Api, ApiMaker
from tests.serving.api.listening import listening

SUM = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'
WEATHER = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'


@asynccontextmanager
async def sdk(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(api.app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=99) as client,
    ):
        yield client


async def test_whole_streamed_and_by_the_helper(make_api: ApiMaker) -> None:
    async with sdk(make_api(make_api.says("Grüß dich 😀", chunk=3))) as client:
        whole = await client.responses.create(model=MODEL, input="hi", instructions="Be kind.", temperature=0.5)
        assert whole.output_text == "Grüß dich 😀"
        assert whole.usage is not None
        seen = []
        async for event in await client.responses.create(model=MODEL, input="hi", stream=True):
            assert event.sequence_number == len(seen)
            seen.append(event)
        assert [type(event).__name__ for event in (seen[0], seen[-1])] == [
            "ResponseCreatedEvent",
            "ResponseCompletedEvent",
        ]
        async with client.responses.stream(model=MODEL, input="hi") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == final.output_text == "Grüß dich 😀"


async def test_an_answer_is_parsed_into_a_model(make_api: ApiMaker) -> None:
    class Point(pydantic.BaseModel):
        x: int

    async with sdk(make_api(make_api.says('{"x": 3}'))) as client:
        parsed = await client.responses.parse(model=MODEL, input="a point", text_format=Point)
        assert parsed.output_parsed == Point(x=3)


async def test_a_stored_response_is_read_continued_and_deleted(make_api: ApiMaker) -> None:
    async with sdk(make_api(make_api.says("One."), make_api.says("Two."))) as client:
        first = await client.responses.create(model=MODEL, input="a", metadata={"k": "v"})
        second = await client.responses.create(model=MODEL, input="b", previous_response_id=first.id)
        found = await client.responses.retrieve(second.id)
        assert (found.output_text, found.previous_response_id) == ("Two.", first.id)
        items = [item async for item in client.responses.input_items.list(second.id)]
        assert [item.type for item in items] == ["message"]
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)


async def test_a_function_and_a_tool_of_the_server(make_api: ApiMaker) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    api = make_api(make_api.says(WEATHER), make_api.says("Sunny."), make_api.says(SUM), make_api.says("42."))
    async with sdk(api) as client:
        first = await client.responses.create(model=MODEL, input="weather?", tools=[tool])
        (call,) = first.output
        assert call.type == "function_call"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        second = await client.responses.create(
            model=MODEL, input=[{"role": "user", "content": "weather?"}, *first.output, result], tools=[tool]
        )
        assert second.output_text == "Sunny."
        third = await client.responses.create(model=MODEL, input="6*7?", tools=[{"type": "calculator"}])
        assert [item.type for item in third.output] == ["mcp_call", "message"]
        assert third.output[0].output == "42"


async def test_items_come_back_with_every_member_that_the_sdk_dumps(make_api: ApiMaker) -> None:
    api = make_api(*[make_api.says(text) for text in (f"Let me see.{WEATHER}", "It rains.", "Bye.")])
    weather = openai.types.responses.FunctionToolParam(
        type="function", name="weather", parameters={"type": "object"}, strict=False
    )
    async with sdk(api) as client:
        made = await client.responses.create(model=MODEL, input="hi", tools=[weather])
        call = next(item for item in made.output if item.type == "function_call")
        said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "hi", "nobody_knows": None}]}]
        said += [item.model_dump() for item in made.output]
        said.append({"type": "function_call_output", "call_id": call.call_id, "output": "wet", "name": None})
        assert (await client.responses.create(model=MODEL, input=said)).output_text == "It rains."
        talk = await client.conversations.create(items=said)
        kept: list[Any] = [item.model_dump() async for item in client.conversations.items.list(talk.id, order="asc")]
        kept.append({"role": "user", "content": "bye"})
        assert (await client.responses.create(model=MODEL, input=kept)).output_text == "Bye."


async def test_conversations(make_api: ApiMaker) -> None:
    async with sdk(make_api(make_api.says("Hello."))) as client:
        made = await client.conversations.create(
            metadata={"topic": "x"}, items=[{"type": "message", "role": "user", "content": "before"}]
        )
        answer = await client.responses.create(model=MODEL, input="hi", conversation=made.id)
        assert answer.conversation is not None
        assert answer.conversation.id == made.id
        items = [item async for item in client.conversations.items.list(made.id, order="asc", limit=1)]
        assert [item.content[0].text for item in items] == ["before", "hi", "Hello."]
        one = await client.conversations.items.retrieve(items[0].id, conversation_id=made.id)
        assert one == items[0]
        added = await client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": "after"}]
        )
        assert len(added.data) == 1
        await client.conversations.items.delete(one.id, conversation_id=made.id)
        changed = await client.conversations.update(made.id, metadata={"topic": "y"})
        assert changed.metadata == {"topic": "y"} == (await client.conversations.retrieve(made.id)).metadata
        assert (await client.conversations.delete(made.id)).deleted


async def test_background_with_polling_resumption_and_cancellation(make_api: ApiMaker) -> None:
    held = Script(token_ids=make_api.ids("never ends"), hold_after=3)
    api = make_api(make_api.says("Some words", chunk=2), held)
    async with sdk(api) as client:
        stream = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if len(seen) == 5:
                break
        await stream.close()
        name = seen[0].response.id
        async for event in await client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number):
            seen.append(event)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].response.output_text == "Some words"
        async with client.responses.stream(response_id=name, starting_after=5) as again:
            assert (await again.get_final_response()).output_text == "Some words"
        running = await client.responses.create(model=MODEL, input="hi", background=True)
        assert running.status == "queued"
        assert (await client.responses.cancel(running.id)).status == "cancelled"


async def test_the_agents_framework_runs_tools_and_streams(make_api: ApiMaker) -> None:
    asked = []

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sun"

    agents.set_tracing_disabled(True)
    says = [make_api.says(text) for text in (WEATHER, "Sunny.", WEATHER, "Sunny again.")]
    async with sdk(make_api(*says)) as client:
        model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = agents.Agent(name="guide", instructions="Help.", model=model, tools=[weather])
        result = await agents.Runner.run(agent, "Weather in Ulm?")
        assert (result.final_output, asked) == ("Sunny.", ["Ulm"])
        streamed = agents.Runner.run_streamed(agent, "And now?", previous_response_id=result.last_response_id)
        kinds = {event.type async for event in streamed.stream_events()}
        assert kinds >= {"raw_response_event", "run_item_stream_event"}
        assert streamed.final_output == "Sunny again."


async def test_the_agents_framework_keeps_a_session_in_a_conversation(make_api: ApiMaker) -> None:
    agents.set_tracing_disabled(True)
    async with sdk(make_api(make_api.says("One."), make_api.says("Two."))) as client:
        model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = agents.Agent(name="guide", model=model)
        session = agents.OpenAIConversationsSession(openai_client=client)
        for said, answer in (("a", "One."), ("b", "Two.")):
            assert (await agents.Runner.run(agent, said, session=session)).final_output == answer
        assert [item["role"] for item in await session.get_items()] == ["user", "assistant"] * 2
        await session.clear_session()
