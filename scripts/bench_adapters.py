"""Throughput of a batch whose streams have 0, 1, 8 or 32 adapters, against the base model alone, on this machine:
`python -m scripts.bench_adapters [--streams N] [--tokens N] [--runs N] [--width D] [--layers L] [--rank R]`.

A Llama with random weights decodes one batch of --streams streams, through scheduler, packer
and programs; with n adapters, stream i has adapter i modulo n. Every setting is run between two runs of the base, and
its ratio is to their mean, so that a machine that slows down does not count against it. Medians of --runs.
"""

import argparse
import statistics
import sys
import time

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from models import llama
from models.adapted_array import AdapterProduct
from models.adapters import lay_out
from pallas_kernels.dispatch import attention_body
from scripts.flags import flags_of
from serving.commands.argument_types import count
from serving.engine.adapter_lease import AdapterLease
from serving.engine.adapter_stacks import AdapterStacks
from serving.engine.block_pool import BlockPool
from serving.engine.device import keep_freed_memory, start_backend
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.limits import ExecutorLimits
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from sharding.mesh import one_device
from sharding.params import Placement

ADAPTERS = (0, 1, 8, 32)
PAGE_SIZE = 16
VOCABULARY = 8192


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        fields = {
            "vocab_size": VOCABULARY,
            "hidden_size": args.width,
            "intermediate_size": 3 * args.width,
            "num_hidden_layers": args.layers,
            "num_attention_heads": args.width // 64,
            "num_key_value_heads": args.width // 128,
            "max_position_embeddings": 1024,
        }
        config = llama.parse(fields)
        form = "list" if args.layers <= 4 else "stacked"
        planned = llama.build(config, jnp.float32, seed=None, layers=form)
        layout = lay_out(planned, llama.tensors(config), slots=max(ADAPTERS), max_rank=args.rank, dtype=jnp.float32)
        home = Placement(one_device(), kv_copies=1)
        self.stacks = AdapterStacks(layout, AdapterProduct(one_device()), home)
        for slot in range(max(ADAPTERS)):
            self.stacks.write(slot, self.stacks.place(self._adapter(slot)))
        length = 1 + args.tokens
        self.limits = ExecutorLimits(
            max_num_seqs=args.streams,
            max_model_len=length,
            page_size=PAGE_SIZE,
            num_pages=args.streams * -(-length // PAGE_SIZE),
            token_buckets=(args.streams,),
        )
        model = llama.build(config, jnp.float32, layers=form)
        body = attention_body("reference")
        shape = llama.shape(config)
        self.executor = Executor(model, shape, self.limits, body, jnp.dtype("float32"), adapters=self.stacks)

    def _adapter(self, seed: int) -> list[np.ndarray]:
        random, layout = np.random.default_rng(seed), self.stacks.layout
        matrices = {}
        for name, target in layout.targets.items():
            out, into = target.shape
            a = random.standard_normal((layout.max_rank, into), np.float32) / np.sqrt(into)
            matrices[name] = (a, random.standard_normal((out, layout.max_rank), np.float32) / 100)
        return layout.on_host(matrices)

    def tokens_per_second(self, adapters: int) -> float:
        """Prompts are of one token, so that every step has one of each stream."""
        args, limits = self.args, self.limits
        scheduler = Scheduler(
            max_model_len=limits.max_model_len,
            max_num_seqs=args.streams,
            max_num_batched_tokens=args.streams,
            max_waiting=args.streams,
            pool=BlockPool(limits.num_pages, PAGE_SIZE, prefix_caching=False),
            vocab_size=VOCABULARY,
        )
        loop = EngineLoop(scheduler, self.executor)
        random = np.random.default_rng(0)
        for i in range(args.streams):
            lease = None if not adapters else AdapterLease(f"{i % adapters}", i % adapters, b"%d" % (i % adapters))
            request = GenerateRequest(
                request_id=f"{i}",
                prompt_token_ids=(int(random.integers(0, VOCABULARY)),),
                sampling=SamplingParams(temperature=0.0, max_tokens=args.tokens),
                adapter="" if lease is None else lease.name,
            )
            scheduler.add(request, loop.now(), None, lease)
        begin, made = time.perf_counter(), 0
        while not loop.idle:
            made += sum(len(event.token_ids) for event in loop.step())
        return made / (time.perf_counter() - begin)


def main(argv: list[str] | None = None) -> int:
    parser = flags_of(__doc__)
    for name, default in (("streams", 32), ("tokens", 32), ("runs", 3)):
        parser.add_argument(f"--{name}", type=count, default=default)
    for name, default in (("width", 512), ("layers", 8), ("rank", 16)):
        parser.add_argument(f"--{name}", type=count, default=default)
    args = parser.parse_args(argv)
    start_backend(None)
    keep_freed_memory()
    bench = Bench(args)
    bench.tokens_per_second(1)
    rates: dict[int, list[float]] = {n: [] for n in ADAPTERS}
    ratios: dict[int, list[float]] = {n: [] for n in ADAPTERS}
    for _ in range(args.runs):
        for adapters in ADAPTERS:
            before, rate, after = (bench.tokens_per_second(n) for n in (0, adapters, 0))
            rates[adapters].append(rate)
            ratios[adapters].append(2 * rate / (before + after))
    table = Table("adapters in the batch", "tokens a second", "of the base's")
    for adapters in ADAPTERS:
        ratio = statistics.median(ratios[adapters])
        table.add_row(f"{adapters}", f"{statistics.median(rates[adapters]):.0f}", f"{ratio:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{bench.stacks.slots} slots of rank {args.rank}: {bench.stacks.nbytes / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
