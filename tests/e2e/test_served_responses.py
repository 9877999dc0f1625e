"""The `openai` SDK over responses and conversations of a real server with the demo model."""

import openai

from tests.e2e.conftest import ServedDemo


def client(served: ServedDemo) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=600)


def test_responses_conversations_and_background_work_unchanged(served_demo: ServedDemo) -> None:
    with client(served_demo) as api:
        model = api.models.list().data[0].id
        asked = {"model": model, "max_output_tokens": 24, "temperature": 0}
        first = api.responses.create(input="Hello! Who are you?", **asked)
        assert first.output_text
        with api.responses.stream(input="Hello! Who are you?", **asked) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert text == final.output_text == first.output_text
        conversation = api.conversations.create()
        for line in ("Hello! Who are you?", "And what can you do?"):
            said = api.responses.create(input=line, conversation=conversation.id, **asked)
        items = list(api.conversations.items.list(conversation.id, order="asc"))
        assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
        assert items[1].content[0].text == first.output_text
        branch = api.responses.create(input="And what can you do?", previous_response_id=first.id, **asked)
        assert branch.output_text == said.output_text, "the same conversation, by its two names"
        assert branch.usage.input_tokens_details.cached_tokens > 0
        running = api.responses.create(input="Hello! Who are you?", background=True, stream=True, **asked)
        begun = next(iter(running)).response
        running.close()
        events = list(api.responses.retrieve(begun.id, stream=True, starting_after=0))
        assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
        assert events[-1].response.output_text == first.output_text
        assert api.responses.retrieve(begun.id).status == "completed"


def test_the_demo_calculates_by_a_tool_of_the_server(served_demo: ServedDemo) -> None:
    with client(served_demo) as api:
        made = api.responses.create(
            input="What is 37 times 12?", temperature=0, tools=[{"type": "calculator"}], tool_choice="required"
        )
        assert made.output[0].type == "mcp_call"
        assert made.output[0].name == "calculator"
        assert made.status == "completed"
