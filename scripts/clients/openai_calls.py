"""The `openai` library."""

import json
from typing import Any

from scripts.clients.call import ASK, PARAMETERS, SUM, TIMEOUT_SECONDS, Call, Target, expect

HI: Any = [{"role": "user", "content": ASK}]
WRITTEN = "made.txt"
TOOL: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}


def _client(target: Target) -> Any:
    import openai

    return openai.OpenAI(base_url=target.v1, api_key=target.key, max_retries=0, timeout=TIMEOUT_SECONDS)


def _models(target: Target) -> None:
    client = _client(target)
    expect(target.model in [model.id for model in client.models.list()], "the model is listed")
    expect(client.models.retrieve(target.model).id == target.model, "the model is found")


def _chat(target: Target) -> None:
    reply = _client(target).chat.completions.create(model=target.model, messages=HI, max_completion_tokens=16)
    expect(reply.choices[0].message.role == "assistant", "an answer")
    expect(reply.usage.completion_tokens > 0, "usage")


def _chat_stream(target: Target) -> None:
    options = {"include_usage": True}
    stream = _client(target).chat.completions.create(
        model=target.model, messages=HI, max_tokens=16, stream=True, stream_options=options
    )
    chunks = list(stream)
    expect(chunks[-1].usage.completion_tokens > 0, "usage at the end")
    expect([chunk for chunk in chunks if chunk.choices], "chunks")


def _tool(target: Target) -> None:
    client = _client(target)
    messages = [{"role": "user", "content": SUM}]
    first = client.chat.completions.create(
        model=target.model, messages=messages, tools=[TOOL], tool_choice="required", max_tokens=300
    )
    message = first.choices[0].message
    expect(message.tool_calls, "a call")
    expect(set(json.loads(message.tool_calls[0].function.arguments)) == {"a", "b"}, "its arguments")
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    second = client.chat.completions.create(
        model=target.model, messages=[*messages, message, result], tools=[TOOL], tool_choice="none", max_tokens=16
    )
    expect(second.choices[0].message.role == "assistant", "an answer after the result")


def _completion(target: Target) -> None:
    reply = _client(target).completions.create(model=target.model, prompt=[ASK, ASK], max_tokens=4, logprobs=1)
    expect(len(reply.choices) == 2, "a choice for each prompt")
    expect(reply.choices[0].logprobs is not None, "logprobs")


def _errors(target: Target) -> None:
    import openai

    try:
        _client(target).chat.completions.create(model=target.model, messages=HI, temperature=9)
    except openai.BadRequestError as error:
        expect(error.param == "temperature", "the parameter is named")
        return
    raise RuntimeError("a wrong temperature was taken")


def _batch(target: Target) -> None:
    client = _client(target)
    body = {"model": target.model, "messages": HI, "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("requests.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"from": "check"}
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        batch = client.batches.retrieve(batch.id)
    expect(batch.status == "completed", "the batch is completed")
    (record,) = client.files.content(batch.output_file_id).text.splitlines()
    expect(json.loads(record)["custom_id"] == "a", "its output")
    for file_id in (file.id, batch.output_file_id):
        expect(client.files.delete(file_id).deleted, "files are deleted")


def _responses(target: Target) -> None:
    client = _client(target)
    first = client.responses.create(model=target.model, input=ASK, max_output_tokens=16)
    expect(first.output_text, "an answer")
    with client.responses.stream(
        model=target.model, input=ASK, previous_response_id=first.id, max_output_tokens=16
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    expect("".join(deltas), "deltas")
    expect(client.responses.retrieve(first.id).output == first.output, "it is kept")
    client.responses.delete(first.id)


def _conversation(target: Target) -> None:
    client = _client(target)
    made = client.conversations.create(metadata={"topic": "check"})
    client.responses.create(model=target.model, input=ASK, conversation=made.id, max_output_tokens=16)
    roles = [item.role for item in client.conversations.items.list(made.id, order="asc")]
    expect(roles == ["user", "assistant"], "what was said is in it")
    expect(client.conversations.delete(made.id).deleted, "it is deleted")


def _background(target: Target) -> None:
    client = _client(target)
    stream = client.responses.create(model=target.model, input=ASK, background=True, stream=True, max_output_tokens=16)
    begun = next(iter(stream))
    stream.close()
    after = begun.sequence_number
    rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=after))
    expect([event.sequence_number for event in rest] == list(range(1, len(rest) + 1)), "every event")


def _container(target: Target) -> None:
    client = _client(target)
    made = client.containers.create(name="check")
    given = client.containers.files.create(made.id, file=("numbers.csv", b"1,2"))
    tool: Any = {"type": "code_interpreter", "container": made.id}
    reply = client.responses.create(
        model=target.model,
        input=f"Write {WRITTEN} with Python.",
        tools=[tool],
        tool_choice={"type": "code_interpreter"},
        max_output_tokens=300,
    )
    calls = [item for item in reply.output if item.type == "code_interpreter_call"]
    expect(all(call.container_id == made.id for call in calls), "the program's container")
    files = list(client.containers.files.list(made.id))
    contents = {
        file.path: client.containers.files.content.retrieve(file.id, container_id=made.id).read() for file in files
    }
    expect(contents[given.path] == b"1,2", "the file that was put there")
    expect(all(len(contents[file.path]) == file.bytes for file in files), "what the program wrote")
    client.containers.delete(made.id)


CALLS = [
    Call("openai", name, run)
    for name, run in (
        ("models", _models),
        ("chat", _chat),
        ("chat, streamed", _chat_stream),
        ("tool call and result", _tool),
        ("completions", _completion),
        ("an error's exception", _errors),
        ("files and batches", _batch),
        ("responses, whole, streamed and kept", _responses),
        ("conversations", _conversation),
        ("responses in the background", _background),
        ("containers and their files", _container),
    )
]
