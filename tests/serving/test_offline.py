"""Batches over a scripted engine, through the real text layer."""

import asyncio
import json
from typing import Any

import pytest

from serving.engine.request import FinishReason, GenerateRequest
from serving.errors import EngineUnavailableError, OverloadedError
from serving.generation.chat_format import ChatFormat
from serving.generation.generator import Generator
from serving.generation.tokenizer import Tokenizer
from serving.offline import PATIENCE_SECONDS, BatchGenerator
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.api.conftest import MODEL, WINDOW, chat_format, tokenizer  # noqa: F401 -- fixtures


class Batch:
    """A batch over an engine that answers "ok." and nothing else, unless `script_for` says otherwise."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:  # noqa: F811
        ids = tokenizer.encode("ok.", add_special_tokens=False)
        self.script = Script(token_ids=[*ids, *tokenizer.eos_token_ids])
        self.engine = ScriptedEngine(scripts=[self.script], vocab_size=tokenizer.vocab_size, max_model_len=WINDOW)
        self.generator = Generator(self.engine, tokenizer, chat_format, MODEL, WINDOW)

    async def run(self, *lines: Any, skip: tuple[str | int, ...] = (), concurrency: int = 4) -> list[dict[str, Any]]:
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
        batch = BatchGenerator(self.generator, concurrency=concurrency)
        async with asyncio.timeout(120):
            return [record async for record in batch.run(raw, skip)]


@pytest.fixture
def batch(tokenizer: Tokenizer, chat_format: ChatFormat) -> Batch:  # noqa: F811
    return Batch(tokenizer, chat_format)


async def test_text_chat_and_token_ids_are_answered_in_the_apis_shape(batch: Batch) -> None:
    records = await batch.run(
        {"id": "text", "prompt": "hi", "max_tokens": 9},
        {"id": "chat", "messages": [{"role": "user", "content": "hi"}]},
        {"id": 7, "prompt_token_ids": [1, 2, 3], "max_tokens": 2},
    )
    found = {record["id"]: record for record in records}
    assert found["text"]["choices"][0]["text"] == "ok."
    assert found["text"]["choices"][0]["finish_reason"] == "stop"
    assert found["chat"]["choices"][0]["message"]["content"] == "ok."
    assert found[7]["choices"][0]["text"] == "ok"
    assert found[7]["usage"]["prompt_tokens"] == 3
    assert found[7]["choices"][0]["finish_reason"] == "length"


async def test_every_parameter_of_the_api_works_on_a_line(batch: Batch) -> None:
    line = {
        "prompt": "hi",
        "n": 2,
        "logprobs": 1,
        "seed": 5,
        "temperature": 0.5,
        "stop": ["k"],
        "return_token_ids": True,
    }
    (record,) = await batch.run(line)
    assert [choice["text"] for choice in record["choices"]] == ["o", "o"]
    assert record["choices"][0]["logprobs"]["tokens"] == ["o"]
    assert record["choices"][1]["token_ids"]
    assert batch.engine.requests[0].sampling.temperature == 0.5


async def test_a_line_without_an_id_has_its_number_and_blank_lines_count(batch: Batch) -> None:
    records = await batch.run({"prompt": "a"}, b"\n", {"prompt": "b"})
    assert sorted(record["id"] for record in records) == [1, 3]


@pytest.mark.parametrize(
    ("line", "param", "says"),
    [
        (b"{nonsense\n", None, "not valid JSON"),
        ({"id": "x", "prompt": "a", "temprature": 1}, "temprature", "did you mean temperature"),
        ({"id": "x", "prompt": "a", "temperature": 9}, "temperature", "between 0 and 2"),
        ({"id": "x"}, "prompt", "none of them"),
        ({"id": "x", "prompt": "a", "messages": []}, "messages", "messages and prompt"),
        ({"id": "x", "prompt": ["a", "b"]}, "prompt", "one string"),
        ({"id": "x", "prompt_token_ids": [1, True]}, "prompt_token_ids", "list of integers"),
        ({"id": "x", "prompt_token_ids": [1 << 40]}, "prompt", "token id"),
        ({"id": [], "prompt": "a"}, "id", "string or an integer"),
        ({"id": "x", "prompt": "a", "stream": True}, "stream", "not supported in a batch"),
        ({"id": "x", "prompt": "a", "model": "other"}, "model", "no model"),
        ({"id": "x", "prompt": "a", "max_tokens": WINDOW}, "max_tokens", "window"),
        ({"id": "good", "prompt": "a"}, "id", "earlier line"),
    ],
)
async def test_a_bad_line_names_line_and_field_and_stops_nothing(
    batch: Batch, line: Any, param: str | None, says: str
) -> None:
    records = await batch.run({"id": "good", "prompt": "a"}, line, {"id": "last", "prompt": "a"})
    bad = [record for record in records if "error" in record]
    assert [record["line"] for record in bad] == [2]
    assert bad[0]["error"]["param"] == param
    assert says in bad[0]["error"]["message"]
    assert sorted(record["id"] for record in records if "choices" in record) == ["good", "last"]


async def test_finished_ids_are_skipped(batch: Batch) -> None:
    records = await batch.run({"id": "a", "prompt": "x"}, {"id": 2, "prompt": "x"}, {"prompt": "x"}, skip=("a", 3))
    assert [record["id"] for record in records] == [2]


async def test_no_more_lines_are_read_than_can_be_run(batch: Batch) -> None:
    read: list[int] = []

    def lines() -> Any:
        for i in range(100):
            read.append(i)
            yield json.dumps({"prompt": "a"}).encode()

    records = BatchGenerator(batch.generator, concurrency=2).run(lines())
    async with asyncio.timeout(120):
        await anext(records)
    assert len(read) < 10
    await records.aclose()


async def test_closing_early_aborts_what_is_open(batch: Batch) -> None:
    held = Script(token_ids=[1, 2, 3], hold_after=1)
    batch.engine.script_for = lambda request: batch.script if not batch.engine.requests else held
    records = BatchGenerator(batch.generator, concurrency=3).run(b'{"prompt": "a"}' for _ in range(3))
    async with asyncio.timeout(120):
        await anext(records)
        await records.aclose()
    assert len(batch.engine.requests) == len(batch.engine.closed) + len(batch.engine.finished)


async def test_a_failure_of_the_engine_on_one_line_is_that_lines_error(batch: Batch) -> None:
    failing = Script(token_ids=[], finish=FinishReason.ERROR, error="out of luck")
    batch.engine.script_for = lambda request: failing if len(batch.engine.requests) == 1 else batch.script
    records = await batch.run(*({"id": i, "prompt": "a"} for i in range(3)), concurrency=1)
    assert ["error" in record for record in records] == [False, True, False]


async def test_a_full_queue_is_waited_for(batch: Batch) -> None:
    def script_for(request: GenerateRequest) -> Script:
        full = Script(token_ids=[], raises=OverloadedError("full", retry_after=0.0))
        return full if not batch.engine.requests else batch.script

    batch.engine.script_for = script_for
    records = await batch.run({"prompt": "a"})
    assert records[0]["choices"][0]["text"] == "ok."
    assert len(batch.engine.requests) == 2


class SteppedClock:
    """Half of the patience passes between two looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += PATIENCE_SECONDS / 2
        return self.now


async def test_a_line_that_is_always_refused_fails_once_nothing_else_is_answered(batch: Batch) -> None:
    full = Script(token_ids=[], raises=OverloadedError("never enough room", retry_after=0.0))
    batch.engine.script_for = lambda request: full
    lines = [b'{"id": 1, "prompt": "a"}', b'{"id": 2, "prompt": "a"}']
    runs = BatchGenerator(batch.generator, concurrency=1, now=SteppedClock()).run(lines)
    async with asyncio.timeout(120):
        records = [record async for record in runs]
    assert [record["id"] for record in records] == [1, 2]
    assert {record["error"]["message"] for record in records} == {"never enough room"}


async def test_a_lost_engine_ends_the_run(batch: Batch) -> None:
    gone = Script(token_ids=[], raises=EngineUnavailableError("gone"))
    batch.engine.script_for = lambda request: gone
    with pytest.raises(EngineUnavailableError):
        await batch.run({"prompt": "a"})
