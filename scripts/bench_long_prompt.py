"""A prompt of 32k tokens arrives amid 32 streams: `python -m scripts.bench_long_prompt`.

The real engine loop and a real Llama of two small layers with random weights and a window of 32k, on the devices of
this machine. Between two tokens of a stream lies a step, so what the streams see is the length of steps. The clock, the
engine's too, counts this process's CPU seconds, all threads together: the machine may be busy with others.
"""

import time
from statistics import median

import jax.numpy as jnp

from models import llama
from pallas_kernels.dispatch import attention_body
from scripts.flags import flags_of
from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler

STREAMS, PROMPT = 32, 32_000
WINDOW, PAGE = 32_768, 32
BUCKETS = (8, 32, 96, 160, 288, 512)  # the streams, and whole tiles of 64 tokens of the prompt
QUIET_STEPS = 150
VOCAB_SIZE = 512
SHARES = (1 / 2, 1 / 4)  # of the p99 gap without a target, as targets
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
    """Gaps of the streams in seconds, before and while the prompt is read."""

    def __init__(self, executor: Executor, target: float | None) -> None:
        limits = executor.limits
        scheduler = Scheduler(
            max_model_len=WINDOW,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=BUCKETS[-1],
            max_waiting=100,
            pool=BlockPool(limits.num_pages, PAGE, prefix_caching=False),
            vocab_size=VOCAB_SIZE,
            token_buckets=BUCKETS,
            target_inter_token=target,
        )
        self._loop = EngineLoop(scheduler, executor, now=time.process_time)
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
        began = time.process_time()
        while "long" not in self._last:
            self._step(self.busy)
        self.first_token = time.process_time() - began

    def _step(self, gaps: list[float]) -> None:
        events = self._loop.step()
        now = time.process_time()
        for event in events:
            before = self._last.get(event.request_id)
            if before is not None:
                gaps.append(now - before)
            self._last[event.request_id] = now


def report(title: str, run: Run, without: float | None) -> float:
    """Prints a run; returns its p99 gap while the prompt is read."""
    quiet, tail = median(run.quiet), sorted(run.busy)[len(run.busy) * 99 // 100]
    ratio = "" if without is None else f", {tail / without:.2f} of that without a target"
    print(
        f"  {title}: without the prompt median {quiet * 1e3:.1f}; with it median {median(run.busy) * 1e3:.1f}, "
        f"p99 {tail * 1e3:.1f} ({tail / quiet:.0f} quiet medians{ratio}); its first token "
        f"after {run.first_token:.1f} s and {len(run.busy) // STREAMS} steps",
        flush=True,
    )
    return tail


def main() -> None:
    flags_of(__doc__).parse_args()
    executor = make_executor()
    Run(executor, None)  # warm
    print(f"a prompt of {PROMPT} tokens amid {STREAMS} streams; gaps between tokens, CPU ms:")
    without = report("no target", Run(executor, None), None)
    for share in SHARES:
        target = share * without
        report(f"target {target * 1e3:.0f} ms", Run(executor, target), without)


if __name__ == "__main__":
    main()
