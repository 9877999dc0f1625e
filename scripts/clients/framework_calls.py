"""Libraries over the two protocols: langchain-openai, litellm, openai-agents."""

import asyncio
import json
from typing import Any

from scripts.clients.call import ASK, PARAMETERS, SUM, TIMEOUT_SECONDS, Call, Target, expect

HI: Any = [{"role": "user", "content": ASK}]
TOOL: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}


def _langchain(target: Target, **fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    fields = {"max_tokens": 16, **fields}
    return ChatOpenAI(
        model=target.model, base_url=target.v1, api_key=target.key, max_retries=0, timeout=TIMEOUT_SECONDS, **fields
    )


def _langchain_invoke(target: Target) -> None:
    reply = _langchain(target).invoke(ASK)
    expect(reply.usage_metadata["output_tokens"] > 0, "usage")


def _langchain_stream(target: Target) -> None:
    expect(list(_langchain(target).stream(ASK)), "chunks")


def _langchain_tool(target: Target) -> None:
    reply = _langchain(target, max_tokens=300).bind_tools([TOOL], tool_choice="required").invoke(SUM)
    expect(set(reply.tool_calls[0]["args"]) == {"a", "b"}, "a call")


def _langchain_form(target: Target) -> None:
    schema = {"title": "Sum", "description": "A sum.", **PARAMETERS}
    model = _langchain(target, max_tokens=300).with_structured_output(schema, method="json_schema")
    expect(set(model.invoke("Extract a and b as JSON: a is 12, b is 30.")) == {"a", "b"}, "an object of the schema")


def _litellm(target: Target, provider: str, **fields: Any) -> Any:
    import litellm

    base = target.v1 if provider == "openai" else target.url
    return litellm.completion(
        model=f"{provider}/{target.model}",
        api_base=base,
        api_key=target.key,
        timeout=TIMEOUT_SECONDS,
        **{"messages": HI, "max_tokens": 16, **fields},
    )


def _litellm_chat(target: Target) -> None:
    expect(_litellm(target, "openai").usage.completion_tokens > 0, "usage")


def _litellm_stream(target: Target) -> None:
    expect(list(_litellm(target, "openai", stream=True)), "chunks")


def _litellm_tool(target: Target) -> None:
    messages = [{"role": "user", "content": SUM}]
    reply = _litellm(target, "openai", messages=messages, tools=[TOOL], tool_choice="required", max_tokens=300)
    expect(set(json.loads(reply.choices[0].message.tool_calls[0].function.arguments)) == {"a", "b"}, "a call")


def _litellm_messages(target: Target) -> None:
    expect(_litellm(target, "anthropic").usage.completion_tokens > 0, "usage")


def _agents_run(target: Target) -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=target.v1, api_key=target.key, timeout=TIMEOUT_SECONDS) as client:
            agent = agents.Agent(
                name="adder",
                instructions="Use the tool.",
                tools=[add],
                model=agents.OpenAIChatCompletionsModel(model=target.model, openai_client=client),
                model_settings=agents.ModelSettings(tool_choice="required", max_tokens=300),
                tool_use_behavior="stop_on_first_tool",
            )
            return str((await agents.Runner.run(agent, SUM, max_turns=2)).final_output)

    expect(asyncio.run(run()).lstrip("-").isdecimal(), "the tool's result")


def _agents_stream(target: Target) -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    async def run() -> int:
        async with openai.AsyncOpenAI(base_url=target.v1, api_key=target.key, timeout=TIMEOUT_SECONDS) as client:
            model = agents.OpenAIChatCompletionsModel(model=target.model, openai_client=client)
            agent = agents.Agent(name="speaker", model=model, model_settings=agents.ModelSettings(max_tokens=16))
            return len([event async for event in agents.Runner.run_streamed(agent, ASK).stream_events()])

    expect(asyncio.run(run()) > 0, "events")


def _agents_responses(target: Target) -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=target.v1, api_key=target.key, timeout=TIMEOUT_SECONDS) as client:
            model = agents.OpenAIResponsesModel(model=target.model, openai_client=client)
            agent = agents.Agent(name="speaker", model=model, model_settings=agents.ModelSettings(max_tokens=16))
            session = agents.OpenAIConversationsSession(openai_client=client)
            for _ in range(2):
                await agents.Runner.run(agent, ASK, session=session)
            return [str(item["role"]) for item in await session.get_items()]

    expect(asyncio.run(run()) == ["user", "assistant"] * 2, "what was said is in the session")


CALLS = [
    Call("langchain-openai", "invoke", _langchain_invoke),
    Call("langchain-openai", "stream", _langchain_stream),
    Call("langchain-openai", "bind_tools", _langchain_tool),
    Call("langchain-openai", "with_structured_output", _langchain_form),
    Call("litellm", "completion", _litellm_chat),
    Call("litellm", "completion, streamed", _litellm_stream),
    Call("litellm", "tool call", _litellm_tool),
    Call("litellm", "completion over /v1/messages", _litellm_messages),
    Call("openai-agents", "run with a tool", _agents_run),
    Call("openai-agents", "run, streamed", _agents_stream),
    Call("openai-agents", "responses, with a session", _agents_responses),
]
