"""Pages in 8 bits, under weights in 8 bits: a stream's tokens do not depend on who is beside it, or on the chunks."""

import numpy as np
import pytest

from models.quantization import Products, at_load, quantize_model
from pallas_kernels.dispatch import attention_body
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.placement import bytes_on_a_device, pool_on_mesh, pool_spec
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from sharding.mesh import one_device
from tests.fakes.tiny_model import MAX_MODEL_LEN, PAGE_SIZE, VOCAB_SIZE, tiny_llama

PAGES, ROWS, BUCKETS = 128, 4, (32,)


@pytest.fixture(scope="module")
def executor() -> Executor:
    model, shape = tiny_llama()
    quantize_model(model, at_load("int8"), Products())
    limits = ExecutorLimits(
        max_num_seqs=ROWS, max_model_len=MAX_MODEL_LEN, page_size=PAGE_SIZE, num_pages=PAGES, token_buckets=BUCKETS
    )
    return Executor(model, shape, limits, attention_body("reference"), "int8")


def tokens_of(executor: Executor, requests: list[GenerateRequest], budget: int) -> dict[str, list[int]]:
    """Each stream's tokens, all of them in one engine with cold pages."""
    scheduler = Scheduler(
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=ROWS,
        max_num_batched_tokens=budget,
        max_waiting=100,
        pool=BlockPool(PAGES, PAGE_SIZE, prefix_caching=True),
        vocab_size=VOCAB_SIZE,
    )
    loop = EngineLoop(scheduler, executor, now=lambda: 0.0)
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        scheduler.add(request, 0.0)
    ended = 0
    while ended < len(requests):
        for event in loop.step():
            found[event.request_id] += event.token_ids
            ended += event.finish_reason is not None
    return found


def request_of(index: int) -> GenerateRequest:
    prompt = np.random.default_rng(index).integers(0, VOCAB_SIZE, 9 + 8 * index).tolist()
    sampling = SamplingParams(temperature=0.0 if index % 2 == 0 else 0.8, seed=index, max_tokens=16)
    return GenerateRequest(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling)


def test_a_stream_gets_the_same_tokens_alone_and_among_others(executor: Executor) -> None:
    requests = [request_of(index) for index in range(ROWS)]
    alone = {}
    for request in requests:
        alone |= tokens_of(executor, [request], budget=32)
    assert all(len(tokens) == 16 for tokens in alone.values())
    assert tokens_of(executor, requests, budget=32) == alone


def test_pages_take_their_numbers_and_their_scales(executor: Executor) -> None:
    _, shape = tiny_llama()
    sizes = {}
    for dtype in (executor.pool.values.dtype, np.dtype("float32")):
        pool = pool_on_mesh(
            attention_body("reference"), pool_spec(shape, executor.limits, dtype, one_device()), one_device()
        )
        sizes[dtype.itemsize] = bytes_on_a_device(pool)
    numbers = PAGES * shape.num_layers * PAGE_SIZE * 2 * shape.num_kv_heads * shape.head_dim
    assert sizes[4] == 4 * numbers
    assert sizes[1] == numbers + 4 * numbers // shape.head_dim
    assert sizes[1] == executor.pool.values.nbytes + executor.pool.scales.nbytes
