"""Steps of an engine that runs, recorded and replayed: the same tokens, in a file that stays within its bound."""

import asyncio
import dataclasses
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.operation import StartTrace, StopTrace
from serving.engine.plan import StepPlan
from serving.engine.replay import deployment_of, replay
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.step_trace import FORM, VERSION, TracedResult, TraceHeader, TraceReader
from serving.errors import NotFoundError, RequestError, UnsupportedError
from serving.settings.operations import OperationsConfig
from tests.fakes.held_steps import held_steps
from tests.fakes.tiny_model import CONFIG, DECODE_ROUNDS, MAX_MODEL_LEN, NUM_PAGES, VOCAB_SIZE, tiny_executor


def deployment(folder: Path, trace_bytes: int = 1 << 20) -> Deployment:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return Deployment(
        name="tiny",
        model=ModelConfig(checkpoint=folder),
        engine=EngineConfig(page_size=8, compilation_cache=folder / "compiled"),
        operations=OperationsConfig(traces=folder, trace_bytes=trace_bytes),
    )


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LocalEngine]:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), 0.0, version="fp_1")
    yield engine
    await engine.close()


def request(number: int, tokens: int = 12) -> GenerateRequest:
    """Some greedy, some drawn, some with memory of what they drew."""
    sampling = SamplingParams(
        max_tokens=tokens,
        temperature=0.0 if number % 3 == 0 else 1.0,
        seed=number,
        frequency_penalty=0.5 if number % 3 == 2 else 0.0,
        logprobs=2 if number % 4 == 1 else None,
    )
    prompt = tuple((7 * number + i) % VOCAB_SIZE for i in range(10 + 3 * number))
    return GenerateRequest(request_id=f"{number}", prompt_token_ids=prompt, sampling=sampling)


async def run(engine: LocalEngine, one: GenerateRequest) -> list[int]:
    return [token async for event in engine.generate(one) for token in event.token_ids]


async def recorded(engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace that begins while a stream runs whose prompt is cached."""
    alone = await run(engine, request(9, tokens=60))
    asked = held_steps(monkeypatch)
    stream = engine.generate(request(9, tokens=60))
    begun = list((await anext(stream)).token_ids)
    assert (await asked(engine, StartTrace(name="noon"))).trace_steps == 0
    await asyncio.gather(*(run(engine, request(i)) for i in range(6)))
    assert begun + [token async for event in stream for token in event.token_ids] == alone
    report = await engine.operate(StopTrace())
    assert report.trace_steps
    assert report.trace_ended is None
    path = tmp_path / "noon.wefttrace"
    assert report.trace_bytes == path.stat().st_size
    return path


async def test_a_trace_replays_with_the_same_tokens(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await recorded(engine, tmp_path, monkeypatch)
    with TraceReader(path) as trace:
        steps = replay(tiny_executor(), trace.records())
    assert steps
    assert all(step.same_tokens for step in steps)
    assert {step.kind for step in steps} >= {"prefill", "decode"}
    assert all(step.seconds > 0 and step.recorded_seconds is not None for step in steps)


async def test_a_replay_tells_where_other_tokens_are_drawn(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await recorded(engine, tmp_path, monkeypatch)
    with TraceReader(path) as trace:
        records = list(trace.records())
    at = next(i for i, record in enumerate(records) if isinstance(record, TracedResult))
    records[at] = msgspec.structs.replace(records[at], digest=0)
    steps = replay(tiny_executor(), records)
    assert [step.same_tokens for step in steps].count(False) == 1


async def test_the_header_says_what_was_built_and_names_nothing_of_the_machine(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await recorded(engine, tmp_path, monkeypatch)
    assert str(tmp_path).encode() not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with TraceReader(path) as trace:
        header = trace.header
    assert (header.version, header.model_name, header.weights, header.config) == (VERSION, "tiny", "fp_1", CONFIG)
    again = deployment_of(header, Path("elsewhere"))
    assert again.model.checkpoint == Path("elsewhere")
    limits = (again.engine.num_pages, again.engine.max_model_len, again.engine.decode_rounds, again.engine.page_size)
    assert limits == (NUM_PAGES, MAX_MODEL_LEN, DECODE_ROUNDS, 8)


async def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    operations = OperationsConfig(traces=tmp_path / "not" / "yet")
    engine = start_local_engine(dataclasses.replace(deployment(tmp_path), operations=operations), tiny_executor(), 0.0)
    await engine.operate(StartTrace(name="first"))
    await engine.operate(StopTrace())
    await engine.close()
    assert stat.S_IMODE((tmp_path / "not" / "yet").stat().st_mode) == 0o700
    assert (tmp_path / "not" / "yet" / "first.wefttrace").is_file()


async def test_a_full_file_ends_the_trace_and_stays_readable(tmp_path: Path) -> None:
    engine = start_local_engine(deployment(tmp_path, trace_bytes=3000), tiny_executor(), 0.0)
    await engine.operate(StartTrace(name="small"))
    tokens = await run(engine, request(9, tokens=60))
    assert len(tokens) == 60
    report = await engine.operate(StopTrace())
    assert report.trace_ended == "the file is full"
    assert (tmp_path / "small.wefttrace").stat().st_size <= 3000
    with TraceReader(tmp_path / "small.wefttrace") as trace:
        assert all(step.same_tokens is not False for step in replay(tiny_executor(), trace.records()))
    await engine.close()


async def test_a_trace_that_the_engines_end_cut_off_is_closed(tmp_path: Path) -> None:
    engine = start_local_engine(deployment(tmp_path), tiny_executor(), 0.0)
    await engine.operate(StartTrace(name="cut"))
    await run(engine, request(1))
    await engine.close()
    path = tmp_path / "cut.wefttrace"
    path.write_bytes(path.read_bytes()[:-3])
    with TraceReader(path) as trace:
        assert replay(tiny_executor(), trace.records())


async def test_what_cannot_be_recorded_is_refused(engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        await engine.operate(StopTrace())
    for name in ("../up", "", "a/b", ".hidden"):
        with pytest.raises(RequestError, match="name must be"):
            await engine.operate(StartTrace(name=name))
    await engine.operate(StartTrace(name="one"))
    with pytest.raises(RequestError, match="already"):
        await engine.operate(StartTrace(name="two"))
    await engine.operate(StopTrace())
    with pytest.raises(RequestError, match="there is a trace"):
        await engine.operate(StartTrace(name="one"))
    engine.trace_folder = None
    with pytest.raises(UnsupportedError, match=r"operations\.traces"):
        await engine.operate(StartTrace(name="three"))


def test_only_a_trace_of_this_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.wefttrace"
    header = TraceHeader(model_name="x", weights="", began_at=0.0, tables={}, config={})
    for data, says in (
        (b"", "no step trace"),
        (b"\xff" * 100, "no step trace"),
        (
            msgspec.msgpack.encode(dataclasses.asdict(StepPlan(step=0, admissions=(), ranges=(), num_decode=0))),
            "no step",
        ),
        (msgspec.msgpack.encode(msgspec.structs.replace(header, version=99)), "version 99"),
        (msgspec.msgpack.encode({"type": "header", "form": FORM, "version": VERSION}), "header is damaged: .*missing"),
    ):
        path.write_bytes(len(data).to_bytes(4, "little") + data)
        with pytest.raises(RequestError, match=says):
            TraceReader(path)
    with pytest.raises(RequestError, match="cannot be read"):
        TraceReader(tmp_path / "missing")
    with pytest.raises(RequestError, match="header is damaged"):
        deployment_of(header, tmp_path)


def test_masks_without_a_step_are_no_trace() -> None:
    from serving.engine.cluster_wire import Masks

    with pytest.raises(RequestError, match="no step"):
        replay(tiny_executor(), [Masks.of(np.zeros((1, 5), np.uint32))])
