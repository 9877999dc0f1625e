"""What speculation gains on this machine: `python -m scripts.bench_speculation [--users N ...] [--kinds K ...]
[--requests N] [--runs N] [--engines N] [--seconds S] [--json FILE]`.

The demo model, and its draft, answer the last turn of dialogues like those that they were trained on, drawn anew. So
many users each send their next request when the last one has ended. Runs with and without speculation take turns, off,
on, off, on, off; the speed of each run with it is to the mean of those before and after it, so that a machine that
slows down does not count against it, and the table has their medians.

Both are runs of one engine, whose scheduler is told to guess or is not: a step without guesses is the same program. Two
engines differ by a tenth, for as long as they live, by where their weights and pages came to lie. --engines makes all
of them anew so often, and counts the runs of all together.

--seconds bounds all that is measured, after loading: each kind and number of users has an equal share of what is left,
and as many requests a run, at most --requests, as fit in it --runs times.
"""

import dataclasses
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.demo.dataset import encoded
from scripts.demo.dialogues.mixture import conversation, training_episode
from scripts.demo.draw import Draw
from scripts.demo.tokenizer import load as load_pieces
from scripts.flags import flags_of
from serving.commands.argument_types import count
from serving.config import Deployment, load_deployment
from serving.engine.block_pool import BlockPool
from serving.engine.device import load_executor
from serving.engine.engine import EngineLoop
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.engine.speculation.speculator import speculator_for
from serving.settings.speculation import SpeculationConfig

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "deployments" / "demo.toml"
DRAFT = ROOT / "configs" / "checkpoints" / "demo-draft"
SETTINGS = {
    "ngram": SpeculationConfig(kind="ngram", depth=4),
    "draft": SpeculationConfig(kind="draft", checkpoint=DRAFT, depth=4),
}
SEED = 990_002  # of dialogues; training takes others
LONGEST = 480  # tokens of a prompt
BUCKETS = (1, 8, 32, 64, 256)


@dataclass(frozen=True)
class Row:
    kind: str
    users: int
    guessed: float  # tokens, of those delivered
    accepted: float  # of the guesses
    tokens_per_second: float
    runs: int
    speed_up: float  # over none, median of the runs
    cpu: float  # the same by the process's CPU time: on a machine with other work
    least: float  # of the runs
    differing: int  # of a run's streams, at most: two best logits that lie within rounding of each other


@dataclass(frozen=True)
class Run:
    tokens: int
    seconds: float
    guessed: int
    accepted: int
    speed_up: float
    cpu: float
    differing: int


@dataclass(frozen=True)
class Took:
    seconds: float
    cpu: float  # seconds of all threads


class Engine:
    """One executor, and a new scheduler for each run."""

    def __init__(self, kind: str, most_users: int) -> None:
        demo = load_deployment(DEMO)
        engine = dataclasses.replace(
            demo.engine,
            max_num_seqs=most_users,
            max_model_len=1024,
            max_num_batched_tokens=256,
            token_buckets=BUCKETS,
        )
        self._demo: Deployment = dataclasses.replace(demo, engine=engine, speculation=SETTINGS[kind])
        self._executor: Any = load_executor(self._demo, 1024)

    def run(
        self, prompts: list[tuple[int, ...]], users: int, *, guessing: bool
    ) -> tuple[Took, list[list[int]], int, int]:
        """(what it took, tokens of each prompt's answer, guesses, of those accepted)."""
        limits = self._executor.limits
        speculator = speculator_for(self._demo.speculation, limits) if guessing else None
        scheduler = Scheduler(
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.token_buckets[-1],
            max_waiting=1024,
            pool=BlockPool(limits.num_pages, limits.page_size),
            vocab_size=self._executor.vocab_size,
            token_buckets=limits.token_buckets,
            decode_rounds=limits.decode_rounds,
            speculator=speculator,
        )
        loop = EngineLoop(scheduler, self._executor)
        answers: list[list[int]] = [[] for _ in prompts]
        coming = iter(range(len(prompts)))

        def send() -> None:
            number = next(coming, None)
            if number is not None:
                sampling = SamplingParams(temperature=0.0, max_tokens=128, eos_token_ids=(7, 2))
                scheduler.add(
                    GenerateRequest(request_id=str(number), prompt_token_ids=prompts[number], sampling=sampling),
                    loop.now(),
                )

        begin, cpu_begin = time.perf_counter(), time.process_time()
        for _ in range(users):
            send()
        while not loop.idle:
            for event in loop.step():
                answers[int(event.request_id)] += event.token_ids
                if event.finish_reason is not None:
                    send()
        took = Took(time.perf_counter() - begin, time.process_time() - cpu_begin)
        if speculator is None:
            return took, answers, 0, 0
        return took, answers, speculator.guessed, speculator.accepted


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--users", type=count, nargs="+", default=[1, 8, 32])
    parser.add_argument("--kinds", choices=("ngram", "draft"), nargs="+", default=["ngram", "draft"])
    parser.add_argument("--requests", type=count, default=48)
    parser.add_argument("--runs", type=count, default=3)
    parser.add_argument("--engines", type=count, default=1)
    parser.add_argument("--seconds", type=count, default=3600)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = [(kind, users) for kind in args.kinds for users in args.users]
    runs: dict[tuple[str, int], list[Run]] = {cell: [] for cell in cells}
    end = time.perf_counter() + args.seconds
    for number in range(args.engines):
        engines = {kind: Engine(kind, max(args.users)) for kind in args.kinds}
        for done, (kind, users) in enumerate(cells):
            left = len(cells) * (args.engines - number) - done
            share = max(end - time.perf_counter(), 0.0) / left
            runs[kind, users] += measure(engines[kind], users, args.requests, args.runs, share)
            print(row_of(kind, users, runs[kind, users]), file=sys.stderr, flush=True)
    rows = [row_of(kind, users, runs[kind, users]) for kind, users in cells]
    show(rows)
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


def measure(engine: Engine, users: int, requests: int, runs: int, seconds: float) -> list[Run]:
    """Two short runs to warm up, and then as many requests a run as fit in `seconds` with `runs` of them."""
    begin = time.perf_counter()
    few = prompts_of(2 * users)
    took_few = max(engine.run(few, users, guessing=guessing)[0].seconds for guessing in (False, True))
    left = seconds - (time.perf_counter() - begin)
    fitting = int(len(few) * left / (2 * runs + 1) / took_few)
    texts = prompts_of(max(min(requests, fitting), 2 * users))
    measured: list[Run] = []
    before, expected, _, _ = engine.run(texts, users, guessing=False)
    for number in range(runs):
        if number and time.perf_counter() - begin + 2 * before.seconds > seconds:
            break
        took, answers, guessed, accepted = engine.run(texts, users, guessing=True)
        after = engine.run(texts, users, guessing=False)[0]
        measured.append(
            Run(
                tokens=sum(map(len, answers)),
                seconds=took.seconds,
                guessed=guessed,
                accepted=accepted,
                speed_up=(before.seconds + after.seconds) / 2 / took.seconds,
                cpu=(before.cpu + after.cpu) / 2 / took.cpu,
                differing=sum(a != b for a, b in zip(answers, expected, strict=True)),
            )
        )
        before = after
    return measured


def row_of(kind: str, users: int, runs: list[Run]) -> Row:
    guessed = sum(run.guessed for run in runs)
    return Row(
        kind=kind,
        users=users,
        runs=len(runs),
        guessed=guessed / sum(run.tokens for run in runs),
        accepted=sum(run.accepted for run in runs) / guessed if guessed else 0.0,
        tokens_per_second=statistics.median(run.tokens / run.seconds for run in runs),
        speed_up=statistics.median(run.speed_up for run in runs),
        cpu=statistics.median(run.cpu for run in runs),
        least=min(run.speed_up for run in runs),
        differing=max(run.differing for run in runs),
    )


def show(rows: list[Row]) -> None:
    table = Table(
        "kind",
        "users",
        "runs",
        "guessed",
        "accepted",
        "tokens/s",
        "speed-up",
        "by CPU time",
        "least",
        "differing streams",
    )
    for row in rows:
        table.add_row(
            row.kind,
            str(row.users),
            str(row.runs),
            f"{row.guessed:.3f} a token",
            f"{row.accepted:.2f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.speed_up:.2f}",
            f"{row.cpu:.2f}",
            f"{row.least:.2f}",
            str(row.differing),
        )
    Console().print(table)


def prompts_of(number: int) -> list[tuple[int, ...]]:
    """Dialogues up to their last answer."""
    pieces, draw = load_pieces(load_deployment(DEMO).model.checkpoint / "tokenizer.model"), Draw(SEED)
    found: list[tuple[int, ...]] = []
    while len(found) < number:
        ids, learned = encoded(pieces, conversation(training_episode(draw, 0.2)))
        last = len(learned) - 1 - learned[::-1].index(True)
        begin = last + 1 - next((n for n, told in enumerate(reversed(learned[: last + 1])) if not told), last + 1)
        if 0 < begin <= LONGEST:
            found.append(tuple(ids[:begin]))
    return found


if __name__ == "__main__":
    main()
