"""Host microseconds of one scheduler step, with every row decoding: `python -m scripts.bench_scheduler [ROWS]`.

The device is left out: results are made before the clock starts. What is timed is plan plus commit, one step in flight.
"""

import statistics
import sys
import time

from serving.engine.block_pool import BlockPool
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler

PROMPT_TOKENS = 512
STEPS = 1000


def run(rows: int) -> list[float]:
    """Seconds of each decode step, `rows` streams running."""
    pages = rows * -(-(PROMPT_TOKENS + STEPS + 64) // 16)
    scheduler = Scheduler(
        max_model_len=8192,
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_waiting=rows,
        pool=BlockPool(2 * pages, 16),
    )
    sampling = SamplingParams(max_tokens=STEPS + 64, eos_token_ids=(2,))
    for number in range(rows):
        prompt = tuple((number * 7 + i) % 30000 + 3 for i in range(PROMPT_TOKENS))
        scheduler.add(
            GenerateRequest(request_id=f"stream-{number}", prompt_token_ids=prompt, sampling=sampling), now=0.0
        )
    previous: StepPlan | None = None
    seconds: list[float] = []
    while len(seconds) < STEPS:
        results: StepResult | None = None
        if previous is not None:
            results = StepResult(
                ranges=tuple(RangeResult(token_id=11 if planned.samples else None) for planned in previous.ranges)
            )
        started = time.thread_time()
        plan = scheduler.plan(started)
        if previous is not None and results is not None:
            scheduler.commit(previous, results)
        elapsed = time.thread_time() - started
        if plan is not None and plan.num_decode == rows:
            seconds.append(elapsed)
        previous = plan
    return seconds


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    micros = sorted(second * 1e6 for second in run(rows))
    print(f"{rows} decoding rows, plan + commit, {len(micros)} steps, microseconds a step:")
    print(f"  median {statistics.median(micros):.0f}  mean {statistics.fmean(micros):.0f}  p99 {micros[-10]:.0f}")


if __name__ == "__main__":
    main()
