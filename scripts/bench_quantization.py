"""What each way to keep weights and pages in fewer bits takes, how fast it is, and what it costs in quality, on this
machine: `python -m scripts.bench_quantization [demo | random] [--tokens N] [--runs N] [--json FILE]`.

demo     the demo model, with perplexity and agreement on dialogues like those that it was trained on, drawn anew,
         through `weft eval`'s own functions
random   a Qwen3-0.6B with random weights: memory and the time of a step of 1, 8 and 128 tokens, agreement of its logits

Every kind is timed between two runs of the model in full, and its ratio is to their mean, so that a machine that slows
down does not count against it. Times are medians of --runs.
"""

import asyncio
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table

from models import qwen3
from models.checkpoint import load
from models.dense import dense_attend
from models.quantization import Products, at_load, quantize_model
from scripts.demo.dataset import encoded
from scripts.demo.dialogues.mixture import conversation, training_episode
from scripts.demo.draw import Draw
from scripts.demo.tokenizer import load as load_pieces
from scripts.flags import flags_of
from serving.commands.argument_types import count
from serving.config import load_deployment
from serving.engine.device import keep_freed_memory, load_executor, start_backend
from serving.engine.local import start_local_engine
from serving.quality.agreement import agreement
from serving.quality.scored_text import ScoredText, score_all

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "deployments" / "demo.toml"
KINDS = ("int8", "int4", "fp8")
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
STEPS = (1, 8, 128)  # tokens
SEED = 990_001  # of dialogues; training takes others

Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags_of(__doc__)
    parser.add_argument("what", choices=("demo", "random"))
    parser.add_argument("--tokens", type=count, default=4000, help="of the dialogues that are scored")
    parser.add_argument("--layers", type=count, default=QWEN3["num_hidden_layers"], help="of the random model")
    parser.add_argument("--runs", type=count, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    start_backend(None)
    keep_freed_memory()
    rows = measure_demo(args.tokens, args.runs) if args.what == "demo" else measure_random(args.layers, args.runs)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(highlight=False, width=150).print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure_demo(tokens: int, runs: int) -> list[Row]:
    cases = [(None, None), *((kind, None) for kind in KINDS), (None, "int8"), (None, "fp8"), ("int8", "int8")]
    full, right, rows = Timed(demo_model(None), runs), None, []
    for quantization, cache in cases:
        scored, page = score_demo(quantization, cache, tokens)
        right = right or scored
        found = agreement(right, scored)
        timed = full if quantization is None else Timed(demo_model(quantization), runs)
        row = timed.row(quantization or "float32", None if quantization is None else full)
        row |= {
            "pages": cache or "float32",
            "bytes a position": page,
            "perplexity": scored.perplexity,
            "same top token": found.same_top_token,
            "mean KL": found.mean_kl,
        }
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def demo_model(kind: Any) -> Any:
    checkpoint = load_deployment(DEMO).model.checkpoint
    recipe = None if kind is None else at_load(kind)
    return load(checkpoint, jnp.float32, layers="list", quantization=recipe, products=Products(blocked=True))[0]


def dialogues(tokens: int) -> list[tuple[int, ...]]:
    """As many as have that many tokens, of at most 512 each."""
    pieces, draw = load_pieces(load_deployment(DEMO).model.checkpoint / "tokenizer.model"), Draw(SEED)
    found: list[tuple[int, ...]] = []
    while sum(map(len, found)) < tokens:
        ids, _ = encoded(pieces, conversation(training_episode(draw, 0.2)))
        if len(ids) <= 512:
            found.append(tuple(ids))
    return found


def score_demo(quantization: Any, cache: Any, tokens: int) -> tuple[ScoredText, int]:
    """(the scored dialogues, bytes that pages take of one position)."""
    demo = load_deployment(DEMO)
    engine_config = dataclasses.replace(demo.engine, cache_dtype=cache, max_model_len=1024, token_buckets=(256,))
    demo = dataclasses.replace(
        demo, model=dataclasses.replace(demo.model, quantization=quantization), engine=engine_config
    )
    executor: Any = load_executor(demo, 1024)
    page = sum(leaf.nbytes for leaf in jax.tree.leaves(executor.pool))
    page //= executor.limits.num_pages * executor.limits.page_size

    texts = dialogues(tokens)  # here: some of them run a tool, in an event loop of its own

    async def run() -> ScoredText:
        engine = start_local_engine(demo, executor, startup_seconds=0.0)
        try:
            return ScoredText(await score_all(engine, texts, lambda _: None))
        finally:
            await engine.close()

    return asyncio.run(run()), page


def measure_random(layers: int, runs: int) -> list[Row]:
    """One model in full, and then each kind of it beside that one."""
    full = Timed(build(layers, None), runs, whole_bytes(None))
    rows = [full.row("float32", None)]
    for kind in KINDS:
        rows.append(Timed(build(layers, kind), runs, whole_bytes(kind)).row(kind, full))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def whole_bytes(kind: Any) -> int:
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(nnx.state(build(28, kind, None)))
    )


def build(layers: int, kind: Any, seed: int | None = 0) -> Any:
    model = qwen3.build(qwen3.parse(QWEN3 | {"num_hidden_layers": layers}), jnp.float32, seed, layers="list")
    if kind is not None:
        quantize_model(model, at_load(kind), Products(blocked=True))
    return model


class Timed:
    """A model's forward, for each number of tokens, over no cache."""

    def __init__(self, model: Any, runs: int, whole: int | None = None) -> None:
        """`whole`: bytes of the model of which this one has some layers."""
        self._runs, self._whole = runs, whole
        graph, state = nnx.split(model)
        leaves, tree = jax.tree.flatten(state)
        self._weights = tuple(leaves)
        self.nbytes = sum(leaf.nbytes for leaf in leaves)
        embedding = cast(Any, state)["embedding"]["table"].get_value()
        self.embedding_nbytes, self._vocab_size = embedding.nbytes, embedding.shape[0]

        def forward(weights: tuple[jax.Array, ...], ids: jax.Array) -> jax.Array:
            merged = cast(Any, nnx.merge(graph, jax.tree.unflatten(tree, weights)))
            return merged(ids, jnp.arange(len(ids)), None, dense_attend(1, len(ids)))[0]

        self._forward: Callable[..., jax.Array] = jax.jit(forward)
        self._hidden = {tokens: np.asarray(self._run(tokens)) for tokens in STEPS}

    def _run(self, tokens: int) -> jax.Array:
        ids = jnp.asarray(np.random.default_rng(tokens).integers(0, self._vocab_size, tokens), jnp.int32)
        return jax.block_until_ready(self._forward(self._weights, ids))

    def once(self, tokens: int) -> float:
        begun = time.perf_counter()
        self._run(tokens)
        return time.perf_counter() - begun

    def row(self, name: str, full: "Timed | None") -> Row:
        row: Row = {
            "weights": name,
            **({} if self._whole is None else {"MB of 28 layers": self._whole / 1e6}),
            "MB": self.nbytes / 1e6,
            "of them token vectors": self.embedding_nbytes / 1e6,
        }
        for tokens in STEPS:
            mine, ratios = [], []
            for _ in range(self._runs):
                before = 0.0 if full is None else full.once(tokens)
                mine.append(self.once(tokens))
                after = mine[-1] if full is None else full.once(tokens)
                ratios.append((before + after) / 2 / mine[-1] if full is not None else 1.0)
            row[f"ms, {tokens} tokens"] = 1e3 * statistics.median(mine)
            row[f"speed ratio, {tokens}"] = statistics.median(ratios)
        one, two = (timed._hidden[STEPS[-1]].astype(np.float64) for timed in (full or self, self))
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        row["cosine of hidden states"] = float(np.mean((one * two).sum(-1) / lengths))
        return row


if __name__ == "__main__":
    sys.exit(main())
