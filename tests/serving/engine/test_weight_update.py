"""Sleep, and other weights in an engine that runs: which tokens follow, and what a failure leaves."""

import asyncio
import dataclasses
import json
import shutil
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import attention_body
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine import device_memory, weight_update
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.live_model import LiveModel
from serving.engine.local import LocalEngine, start_local_engine
from serving.engine.operation import EngineState, LoadWeights, Pause, Resume, Sleep, Wake
from serving.engine.request import GenerateRequest, SamplingParams, TokenEvent
from serving.engine.weights_fingerprint import weights_fingerprint
from serving.engine.weights_source import WeightsSource
from serving.errors import NotFoundError, OverloadedError, RequestError, UnsupportedError
from serving.settings.operations import OperationsConfig
from sharding.mesh import one_device
from sharding.params import Placement
from tests.fakes.held_steps import held_steps
from tests.models.tiny_checkpoint import CONFIG, weights, write

WINDOW = 64
LIMITS = ExecutorLimits(max_num_seqs=4, max_model_len=WINDOW, page_size=4, num_pages=64, token_buckets=(4, 16))
PATIENCE = 180.0  # seconds; only a broken test waits that long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one form, `first` and `second`, and some that are not like them."""
    folder = tmp_path_factory.mktemp("checkpoints")
    theirs = {name: np.roll(tensor, 1).copy() for name, tensor in weights().items()}
    for name, tensors, config in (
        ("first", weights(), CONFIG),
        ("second", theirs, CONFIG),
        ("turned", theirs, CONFIG | {"rope_theta": 500.0}),
        ("cut", theirs, CONFIG),
    ):
        (folder / name).mkdir()
        write(folder / name, tensors, config)
    cut = folder / "cut" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    return folder


@pytest.fixture(scope="module")
def executor(folder: Path) -> Executor:
    source = WeightsSource(
        checkpoint=folder / "first",
        dtype=jnp.dtype("float32"),
        kept={"layers": "list"},
        max_length=WINDOW,
        placement=Placement(one_device(), kv_copies=1),
        finish=lambda _: None,
    )
    model, shape = source.load(folder / "first")
    executor = Executor(model, shape, LIMITS, attention_body("reference"), jnp.dtype("float32"))
    executor.memory.source = source
    return executor


def started(executor: Executor, folder: Path, *, wakes: bool = False) -> LocalEngine:
    """An engine with the first weights, whatever a test before this one has left."""
    memory, source = executor.memory, executor.memory.source
    assert source is not None
    memory.put_weights(source.read(folder / "first"))
    memory.take_back()
    version = weights_fingerprint(folder / "first")
    model = LiveModel(
        name="tiny", memory=memory, source=source, checkpoint=folder / "first", version=version, folder=folder
    )
    deployment = Deployment(
        name="tiny",
        model=ModelConfig(checkpoint=folder / "first"),
        engine=EngineConfig(max_num_seqs=4),
        operations=OperationsConfig(wake_on_request=wakes),
    )
    return start_local_engine(deployment, executor, 0.0, model=model, version=version)


@pytest.fixture
async def engine(executor: Executor, folder: Path) -> AsyncIterator[LocalEngine]:
    engine = started(executor, folder)
    yield engine
    await engine.close()


def request(name: str, max_tokens: int = 40) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return GenerateRequest(request_id=name, prompt_token_ids=tuple(range(1, 14)), sampling=sampling)


async def events_of(engine: LocalEngine, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


@pytest.mark.parametrize("kept", ["host", "none"])
async def test_a_stream_that_slept_goes_on_with_the_same_tokens(
    engine: LocalEngine, kept: Literal["host", "none"], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tokens_of(await events_of(engine, request("alone")))
    asked = held_steps(monkeypatch)
    stream = engine.generate(request("open"))
    begun = [await anext(stream)]
    asleep = await asked(engine, Sleep(weights=kept))
    assert asleep.state == EngineState.ASLEEP
    assert asleep.freed_bytes
    assert asleep.open_streams == 1
    assert (await engine.stats()).used_pages == 0
    with pytest.raises(OverloadedError, match="sleeps") as refusal:
        await events_of(engine, request("late"))
    assert refusal.value.code == "engine_asleep"
    for operation in (Pause(), Resume()):
        with pytest.raises(RequestError, match="asleep"):
            await engine.operate(operation)
    assert (await engine.operate(Wake())).state == EngineState.RUNNING
    assert tokens_of(begun + [event async for event in stream]) == alone
    assert (await events_of(engine, request("after")))[0].cached_tokens is not None


async def test_memory_is_given_back_in_sleep_and_not_twice(engine: LocalEngine, executor: Executor) -> None:
    assert engine.model is not None
    held = [weakref.ref(leaf) for leaf in (*executor._resident.weights, executor.pool)]
    first = await engine.operate(Sleep(weights="none"))
    assert all(leaf() is None for leaf in held)
    assert not engine.model.memory.has_weights
    assert (await engine.operate(Sleep())).freed_bytes == 0
    await engine.operate(Wake())
    assert first.freed_bytes is not None
    with pytest.raises(RequestError, match="does not sleep"):
        await engine.operate(Wake())


async def test_a_request_wakes_an_engine_that_is_set_so(executor: Executor, folder: Path) -> None:
    engine = started(executor, folder, wakes=True)
    alone = tokens_of(await events_of(engine, request("alone")))
    await engine.operate(Sleep(weights="none"))
    together = await asyncio.gather(*(events_of(engine, request(f"late {i}")) for i in range(3)))
    assert [tokens_of(events) for events in together] == [alone] * 3
    await engine.close()


async def test_a_wake_goes_on_where_the_request_that_asked_for_it_has_left(
    executor: Executor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(executor, folder, wakes=True)
    alone = tokens_of(await events_of(engine, request("alone")))
    await engine.operate(Sleep(weights="none"))
    read, reads, begun, go_on = WeightsSource.read, [], threading.Event(), threading.Event()

    def slowly(source: WeightsSource, path: Path) -> list:
        reads.append(path)
        begun.set()
        assert go_on.wait(PATIENCE)
        return read(source, path)

    monkeypatch.setattr(WeightsSource, "read", slowly)
    leaving = asyncio.create_task(events_of(engine, request("leaves")))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    late = asyncio.create_task(events_of(engine, request("late")))
    go_on.set()
    assert tokens_of(await late) == alone
    assert len(reads) == 1
    await engine.close()


async def test_a_request_that_cannot_wake_the_engine_is_not_accepted_and_reads_no_path(
    executor: Executor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(executor, folder, wakes=True)
    await engine.operate(Sleep(weights="none"))
    assert engine.model is not None
    with monkeypatch.context() as gone:
        gone.setattr(engine.model, "checkpoint", folder / "nowhere")
        with pytest.raises(OverloadedError, match="cannot be woken") as refusal:
            await events_of(engine, request("late"))
    assert refusal.value.code == "engine_asleep"
    assert str(folder) not in refusal.value.message
    assert (await engine.stats()).state == EngineState.ASLEEP
    await engine.operate(Wake())
    await engine.close()


async def test_a_checkpoint_that_was_written_anew_in_its_sleep_is_other_weights(
    executor: Executor, folder: Path, tmp_path: Path
) -> None:
    engine = started(executor, folder)
    assert engine.model is not None
    old = await events_of(engine, request("old"))
    engine.model.checkpoint = shutil.copytree(folder / "first", tmp_path / "served")
    await engine.operate(Sleep(weights="none"))
    shutil.copyfile(folder / "second" / "model.safetensors", tmp_path / "served" / "model.safetensors")
    report = await engine.operate(Wake())
    assert report.weights == weights_fingerprint(tmp_path / "served") != old[0].weights
    new = await events_of(engine, request("new"))
    assert new[0].weights == report.weights
    assert new[0].cached_tokens == 0
    await engine.operate(LoadWeights(checkpoint="second"))
    assert tokens_of(await events_of(engine, request("second"))) == tokens_of(new) != tokens_of(old)
    await engine.close()


async def test_a_checkpoint_that_was_written_anew_in_another_form_leaves_the_engine_asleep(
    executor: Executor, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(executor, folder)
    assert engine.model is not None
    old = tokens_of(await events_of(engine, request("old")))
    served = shutil.copytree(folder / "first", tmp_path / "served")
    await engine.operate(Sleep(weights="none"))
    tied = {name: tensor for name, tensor in weights().items() if name != "lm_head.weight"}
    write(served, tied, CONFIG | {"tie_word_embeddings": True})
    with monkeypatch.context() as there:
        there.setattr(engine.model, "checkpoint", served)
        with pytest.raises(RequestError, match=r"other shapes|other forms|differs") as refusal:
            await engine.operate(Wake())
        # Nor where it is the very folder that the engine was started with, which there is nothing to compare with.
        source = dataclasses.replace(engine.model.source, checkpoint=served)
        there.setattr(engine.model, "source", source)
        with pytest.raises(RequestError, match="other forms"):
            await engine.operate(Wake())
    assert refusal.value.code == "checkpoint_refused"
    assert (await engine.stats()).state == EngineState.ASLEEP
    await engine.operate(Wake())
    assert tokens_of(await events_of(engine, request("again"))) == old
    await engine.close()


@pytest.mark.parametrize("kept", ["host", "none"])
async def test_without_room_it_sleeps_on_and_wakes_when_there_is(
    engine: LocalEngine, kept: Literal["host", "none"], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tokens_of(await events_of(engine, request("old")))
    await engine.operate(Sleep(weights=kept))

    def full(_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    with monkeypatch.context() as taken:
        taken.setattr(device_memory, "empty_pool", full)
        with pytest.raises(RequestError, match="no room") as refusal:
            await engine.operate(Wake())
    assert refusal.value.code == "no_room_to_wake"
    assert (await engine.stats()).state == EngineState.ASLEEP
    await engine.operate(Wake())
    assert tokens_of(await events_of(engine, request("again"))) == old


async def test_new_weights_draw_new_tokens_and_reuse_no_old_page(engine: LocalEngine, folder: Path) -> None:
    old = await events_of(engine, request("old"))
    report = await engine.operate(LoadWeights(checkpoint="second"))
    assert report.weights == weights_fingerprint(folder / "second") != old[0].weights
    new = await events_of(engine, request("new"))
    assert tokens_of(new) != tokens_of(old)
    assert new[0].cached_tokens == 0
    assert {event.weights for event in (new[0], new[-1])} == {report.weights}
    assert (await engine.stats()).weights == report.weights
    assert tokens_of(await events_of(engine, request("again"))) == tokens_of(new)
    await engine.operate(LoadWeights(checkpoint="first"))
    back = await events_of(engine, request("back"))
    assert tokens_of(back) == tokens_of(old)
    assert back[0].cached_tokens == 0


async def test_an_open_stream_goes_on_as_the_new_weights_would(
    engine: LocalEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = held_steps(monkeypatch)
    stream = engine.generate(request("open"))
    first = await anext(stream)
    report = await asked(engine, LoadWeights(checkpoint="second"))
    rest = [event async for event in stream]
    assert first.weights == weights_fingerprint(folder / "first")
    assert rest[-1].weights == report.weights
    tokens = tokens_of([first, *rest])
    # At the latest the tokens after the update are those that the new weights draw after what was there.
    drawn, kept = None, 0
    for kept in range(len(tokens)):
        continued = dataclasses.replace(request(f"continued {kept}"), output_token_ids=tuple(tokens[:kept]))
        drawn = tokens[:kept] + tokens_of(await events_of(engine, continued))
        if drawn == tokens:
            break
    assert drawn == tokens
    assert kept < len(tokens) - 1


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("turned", RequestError, "differs from the served one.s in rope"),
        ("cut", RequestError, "cannot be loaded"),
        ("missing", NotFoundError, "no folder"),
        ("..", RequestError, "inside of"),
        ("", RequestError, "inside of"),
    ],
)
async def test_a_load_that_fails_leaves_the_old_weights_serving(
    engine: LocalEngine, name: str, error: type[Exception], says: str
) -> None:
    old = tokens_of(await events_of(engine, request("old")))
    with pytest.raises(error, match=says):
        await engine.operate(LoadWeights(checkpoint=name))
    assert tokens_of(await events_of(engine, request("still"))) == old
    assert (await engine.stats()).state == EngineState.RUNNING


@pytest.mark.parametrize(("owner", "moment"), [(weight_update, "_hold"), (WeightsSource, "read")])
async def test_a_load_whose_operator_leaves_is_carried_to_its_end(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, owner: Any, moment: str
) -> None:
    work, begun, go_on = getattr(owner, moment), threading.Event(), threading.Event()

    def late(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return work(*given)

    monkeypatch.setattr(WeightsSource, "num_devices", 2)  # so that no step begins meanwhile
    monkeypatch.setattr(owner, moment, late)
    leaving = asyncio.create_task(engine.operate(LoadWeights(checkpoint="second")))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    leaving.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        events = await events_of(engine, request("after"))
    assert engine.model is not None
    assert events[0].weights == engine.model.version
    assert engine.model.checkpoint.name == "second"


async def test_a_link_out_of_the_folder_is_refused(engine: LocalEngine, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(RequestError, match="inside of"):
        await engine.operate(LoadWeights(checkpoint="link"))


@pytest.mark.parametrize(("name", "error"), [("first\0", RequestError), ("f" * 5000, NotFoundError)])
async def test_what_can_be_no_name_of_a_folder_is_refused(
    engine: LocalEngine, name: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"operations\.checkpoints"):
        await engine.operate(LoadWeights(checkpoint=name))


async def test_without_a_folder_no_weights_are_loaded(engine: LocalEngine) -> None:
    assert engine.model is not None
    engine.model.folder = None
    with pytest.raises(UnsupportedError, match=r"operations\.checkpoints"):
        await engine.operate(LoadWeights(checkpoint="second"))


async def test_weights_loaded_asleep_serve_once_it_wakes(engine: LocalEngine) -> None:
    await engine.operate(Sleep(weights="none"))
    report = await engine.operate(LoadWeights(checkpoint="second"))
    assert report.state == EngineState.ASLEEP
    await engine.operate(Wake())
    asleep = tokens_of(await events_of(engine, request("woken")))
    await engine.operate(LoadWeights(checkpoint="first"))
    assert tokens_of(await events_of(engine, request("first"))) != asleep


async def test_an_engine_of_several_hosts_refuses_by_name(executor: Executor, folder: Path) -> None:
    deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=folder))
    engine = start_local_engine(deployment, executor, 0.0)
    for operation in (Sleep(), Wake(), LoadWeights(checkpoint="second")):
        with pytest.raises(UnsupportedError, match="several hosts"):
            await engine.operate(operation)
    await engine.close()


def test_the_fingerprint_is_of_the_weights_and_not_of_what_lies_beside(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (folder / "first").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "tokenizer_config.json").write_text("{}")
    (copy / "README.md").write_text("text")
    assert weights_fingerprint(copy) == weights_fingerprint(folder / "first")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 3.0}))
    assert weights_fingerprint(copy) != weights_fingerprint(folder / "first")
