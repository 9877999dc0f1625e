"""A prompt of 32k tokens arrives amid 32 streams: `python -m scripts.bench_long_prompt`.

The real engine loop and a real Llama of two small layers with random weights and a window of 32k, on the devices of
this machine. Between two tokens of a stream lies a step, so what the streams see is the length of steps; the machine
may be busy with others, so what counts is the ratio to the median step without the prompt, in the same run.
"""

import time
from statistics import median

import jax.numpy as jnp

from models import llama
from pallas_kernels.dispatch import attention_body
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler

STREAMS, PROMPT = 32, 32_000
WINDOW, PAGE = 32_768, 32
BUCKETS = (8, 32, 48, 64, 128, 256, 512)
QUIET_STEPS = 150
VOCAB_SIZE = 512
TARGETS = (None, 4.0, 2.0)  # in medians of a quiet step
CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": WINDOW,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
}


def make_executor() -> Executor:
    config = llama.parse(CONFIG)
    limits = ExecutorLimits(
        max_num_seqs=STREAMS + 1,
        max_model_len=WINDOW,
        page_size=PAGE,
        num_pages=WINDOW // PAGE + STREAMS * 256,
        token_buckets=BUCKETS,
    )
    model = llama.build(config, jnp.dtype("float32"), layers="list")
    return Executor(model, llama.shape(config), limits, attention_body("reference"), jnp.dtype("float32"))


def request(name: str, length: int, max_tokens: int) -> GenerateRequest:
    prompt = tuple((len(name) * 31 + i * i) % VOCAB_SIZE for i in range(length))
    return GenerateRequest(
        request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens)
    )


class Run:
    """Gaps of the streams, before and while the prompt is read. `target`: in medians of the quiet gaps."""

    def __init__(self, executor: Executor, target: float | None, quiet_median: float | None) -> None:
        limits = executor.limits
        seconds = None if target is None or quiet_median is None else target * quiet_median
        scheduler = Scheduler(
            max_model_len=WINDOW,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=BUCKETS[-1],
            max_waiting=100,
            pool=BlockPool(limits.num_pages, PAGE, prefix_caching=False),
            vocab_size=VOCAB_SIZE,
            token_buckets=BUCKETS,
            target_inter_token=seconds,
        )
        self._loop = EngineLoop(scheduler, executor)
        self._last: dict[str, float] = {}
        for number in range(STREAMS):
            scheduler.add(request(f"stream-{number}", 32, 8000), self._loop.now())
        while len(self._last) < STREAMS:
            self._step([])
        self.quiet: list[float] = []
        for _ in range(QUIET_STEPS):
            self._step(self.quiet)
        self.busy: list[float] = []
        scheduler.add(request("long", PROMPT, 1), self._loop.now())
        began = time.perf_counter()
        while "long" not in self._last:
            self._step(self.busy)
        self.first_token = time.perf_counter() - began

    def _step(self, gaps: list[float]) -> None:
        events = self._loop.step()
        now = time.perf_counter()
        for event in events:
            before = self._last.get(event.request_id)
            if before is not None:
                gaps.append(now - before)
            self._last[event.request_id] = now


def main() -> None:
    executor = make_executor()
    Run(executor, None, None)  # warm
    quiet_median: float | None = None
    print(f"a prompt of {PROMPT} tokens amid {STREAMS} streams; gaps between tokens, ms:")
    for target in TARGETS:
        run = Run(executor, target, quiet_median)
        middle = median(run.quiet)
        quiet_median = quiet_median or middle
        tail, worst = sorted(run.busy)[len(run.busy) * 99 // 100], max(run.busy)
        print(
            f"  target {'off        ' if target is None else f'{target:g} medians  '}"
            f"without the prompt: median {middle * 1e3:6.1f}   with it: median {median(run.busy) * 1e3:6.1f}"
            f"  p99 {tail * 1e3:6.1f} ({tail / middle:5.1f} quiet medians)  worst {worst * 1e3:6.1f}"
            f"   its first token after {run.first_token:5.1f} s, of {len(run.busy) // STREAMS} steps"
        )


if __name__ == "__main__":
    main()
