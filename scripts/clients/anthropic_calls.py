"""The `anthropic` library."""

from typing import Any

from scripts.clients.call import ASK, PARAMETERS, SUM, TIMEOUT_SECONDS, Call, Target, expect

HI: Any = [{"role": "user", "content": ASK}]
TOOL: Any = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}


def _client(target: Target) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=target.url, api_key=target.key, max_retries=0, timeout=TIMEOUT_SECONDS)


def _message(target: Target) -> None:
    reply = _client(target).messages.create(model=target.model, max_tokens=16, messages=HI, system="Be short.")
    expect(reply.role == "assistant", "an answer")
    expect(reply.usage.output_tokens > 0, "usage")


def _stream(target: Target) -> None:
    with _client(target).messages.stream(model=target.model, max_tokens=16, messages=HI) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    expect(text == "".join(block.text for block in whole.content), "the stream joined is the whole")
    expect(whole.stop_reason in ("end_turn", "max_tokens"), "why it ended")


def _tool(target: Target) -> None:
    client = _client(target)
    messages: Any = [{"role": "user", "content": SUM}]
    with client.messages.stream(
        model=target.model, max_tokens=300, messages=messages, tools=[TOOL], tool_choice={"type": "any"}
    ) as stream:
        first = stream.get_final_message()
    expect(first.stop_reason == "tool_use", "it ended with a call")
    call = next(block for block in first.content if block.type == "tool_use")
    expect(set(call.input) == {"a", "b"}, "its arguments")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    turns = [*messages, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(
        model=target.model, max_tokens=16, messages=turns, tools=[TOOL], tool_choice={"type": "none"}
    )
    expect(second.role == "assistant", "an answer after the result")


def _count(target: Target) -> None:
    counted = _client(target).messages.count_tokens(model=target.model, messages=HI, tools=[TOOL])
    expect(counted.input_tokens > 0, "a count")


def _errors(target: Target) -> None:
    import anthropic

    try:
        _client(target).messages.create(
            model=target.model, max_tokens=16, messages=HI, thinking={"type": "enabled", "budget_tokens": 1024}
        )
    except anthropic.BadRequestError as error:
        expect("thinking" in error.message, "the parameter is named")
        return
    raise RuntimeError("thinking was taken")


CALLS = [
    Call("anthropic", name, run)
    for name, run in (
        ("messages", _message),
        ("messages, streamed", _stream),
        ("tool use and result", _tool),
        ("count_tokens", _count),
        ("an error's exception", _errors),
    )
]
