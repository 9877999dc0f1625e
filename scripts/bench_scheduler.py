"""Host microseconds of one scheduler step: `python -m scripts.bench_scheduler [ROWS]`.

    plain    every row decodes; one class, one tenant, nobody waits
    waiting  the same, with 256 more in the queue
    mixed    three classes, eight tenants, deadlines, a target between tokens and a full queue; streams end and others
             take their rows, so a step has decodes, chunks and admissions

The device is left out: results are made before the clock starts. What is timed is plan plus commit, one step in flight,
in seconds of this thread. The lower tenth is what the work takes; what is above it is the machine's.
"""

import statistics
import time
from dataclasses import dataclass

from scripts.flags import flags_of
from serving.commands.argument_types import count
from serving.engine.block_pool import BlockPool
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.request import GenerateRequest, Priority, SamplingParams
from serving.engine.scheduler import Scheduler

PROMPT_TOKENS = 512
STEPS = 1000
WARM_UP = 16
DEVICE_STEP = 5e-3  # seconds, that the host's share is told of


@dataclass(frozen=True)
class Scenario:
    name: str
    waiting: int = 0  # beyond those that run, always
    mixed: bool = False


SCENARIOS = (Scenario("plain"), Scenario("waiting", waiting=256), Scenario("mixed", waiting=256, mixed=True))


def request(number: int, scenario: Scenario) -> GenerateRequest:
    prompt = tuple((number * 7 + i) % 30000 + 3 for i in range(PROMPT_TOKENS))
    if not scenario.mixed:
        sampling = SamplingParams(max_tokens=STEPS + 64, eos_token_ids=(2,))
        return GenerateRequest(request_id=f"stream-{number}", prompt_token_ids=prompt, sampling=sampling)
    return GenerateRequest(
        request_id=f"stream-{number}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=100 + number % 200, eos_token_ids=(2,)),
        priority=list(Priority)[number % 3],
        tenant=f"tenant-{number % 8}",
        tenant_weight=1.0 + number % 2,
        deadline_seconds=1e6,
    )


def run(rows: int, scenario: Scenario) -> list[float]:
    """Seconds of each step, once all rows run."""
    pages = rows * -(-(PROMPT_TOKENS + STEPS + 64) // 16)
    scheduler = Scheduler(
        max_model_len=8192,
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_waiting=2 * rows + scenario.waiting,
        pool=BlockPool(2 * pages, 16),
        target_inter_token=DEVICE_STEP if scenario.mixed else None,
    )
    added = steps_with_all = 0
    previous: StepPlan | None = None
    seconds: list[float] = []
    while len(seconds) < STEPS:
        stats = scheduler.stats
        for _ in range(rows + scenario.waiting - stats.running - stats.waiting):
            scheduler.add(request(added, scenario), now=0.0)
            added += 1
        results: StepResult | None = None
        if previous is not None:
            results = StepResult(
                ranges=tuple(RangeResult(token_id=11 if planned.samples else None) for planned in previous.ranges)
            )
        started = time.thread_time()
        plan = scheduler.plan(started)
        if previous is not None and results is not None:
            scheduler.commit(previous, results, 2e-3)
        elapsed = time.thread_time() - started
        steps_with_all += scheduler.stats.running == rows
        if steps_with_all > WARM_UP and (scenario.mixed or (plan is not None and plan.num_decode == rows)):
            seconds.append(elapsed)
        previous = plan
    return seconds


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("rows", nargs="?", type=count, default=256)
    rows = parser.parse_args().rows
    print(f"{rows} rows, plan + commit, microseconds a step, and share of a device step of {DEVICE_STEP * 1e3:g} ms:")
    for scenario in SCENARIOS:
        micros = sorted(second * 1e6 for second in run(rows, scenario))
        tenth, median = micros[len(micros) // 10], statistics.median(micros)
        share = tenth / (DEVICE_STEP * 1e6)
        print(
            f"  {scenario.name:8} lower tenth {tenth:5.0f} ({share:4.0%})  median {median:5.0f}  p99 {micros[-10]:5.0f}"
        )


if __name__ == "__main__":
    main()
