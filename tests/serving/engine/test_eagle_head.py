"""A stream gives the same tokens with an EAGLE-3 head as without; its guesses are those of the published head."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from models import checkpoint as checkpoints
from models import eagle3, llama
from models.dense import dense_attend
from models.interface import ModelShape
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.device import load_executor
from serving.engine.eagle_head import load_head
from serving.engine.executor import Executor
from serving.engine.request import GenerateRequest, SamplingParams
from serving.errors import CheckpointError, ConfigError
from serving.settings.speculation import SpeculationConfig
from sharding.mesh import one_device
from sharding.params import Placement
from tests.models import eagle3_checkpoint
from tests.models.eagle3_reference import ReferenceHead
from tests.serving.engine.guessed_streams import GuessedStreams

VOCAB_SIZE, D, DEPTH, PAGES = 32, 32, 3, 64
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": D,
    "intermediate_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
HEAD: dict[str, Any] = eagle3_checkpoint.CONFIG | {
    "vocab_size": VOCAB_SIZE,
    "draft_vocab_size": VOCAB_SIZE - 3,
    "hidden_size": D,
    "intermediate_size": D,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}


class Deployed:
    """A model with its head, as a deployment has them."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(1)
        table = llama.tensors(llama.parse(dict(TARGET)))
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(TARGET))
        made = {
            name: (random.normal(size=tensor.shape) * 0.3).astype(np.float32)
            for name, tensor in table.items()
            if tensor
        }
        save_file(made, folder / "model" / "model.safetensors")
        eagle3_checkpoint.write(folder / "head", HEAD, target_layers=2)
        self.reference = ReferenceHead(HEAD, load_file(folder / "head" / "model.safetensors"))
        self.deployment = Deployment(
            name="tiny",
            model=ModelConfig(checkpoint=folder / "model", dtype="float32"),
            engine=EngineConfig(
                max_model_len=96,
                max_num_seqs=8,
                max_num_batched_tokens=16,
                token_buckets=(16,),
                page_size=8,
                num_pages=PAGES,
                decode_rounds=1,
                compilation_cache=folder / "compiled",
            ),
            speculation=SpeculationConfig(kind="eagle3", checkpoint=folder / "head", depth=DEPTH, adaptive=False),
        )
        executor = load_executor(self.deployment, 96)
        assert isinstance(executor, Executor)
        self.executor = executor


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    return Deployed(tmp_path_factory.mktemp("eagle"))


def streams(deployed: Deployed, *, guesses: bool = True, pages: int = PAGES) -> GuessedStreams:
    speculation = deployed.deployment.speculation if guesses else SpeculationConfig()
    return GuessedStreams(deployed.executor, speculation, pages=pages)


def asked(number: int, prompt: Sequence[int], **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**({"temperature": 0.0, "max_tokens": 14} | sampling))
    return GenerateRequest(request_id=f"stream-{number}", prompt_token_ids=tuple(prompt), sampling=params)


def mix() -> list[GenerateRequest]:
    """Prompts longer than a step, some of the same beginning; greedy and drawn, with and without penalties."""
    random = np.random.default_rng(2)
    prefix = random.integers(0, VOCAB_SIZE, 20).tolist()
    requests = []
    for number in range(8):
        prompt = [*(prefix if number % 2 else ()), *random.integers(0, VOCAB_SIZE, 3 + 3 * number).tolist()]
        drawn = {"temperature": 0.8, "seed": number, "top_p": 0.9} if number % 3 else {}
        penalty = {"repetition_penalty": 1.3} if number % 4 == 1 else {}
        requests.append(asked(number, prompt, max_tokens=24, **drawn, **penalty))
    return requests


@pytest.mark.parametrize("pages", [PAGES, 14])
def test_any_mix_gives_the_tokens_that_it_gives_without_a_head(deployed: Deployed, pages: int) -> None:
    expected = streams(deployed, guesses=False).tokens(mix())
    run = streams(deployed, pages=pages)
    assert run.tokens(mix()) == expected
    assert run.speculator is not None
    assert run.speculator.guessed > 15
    assert (run.scheduler.stats.preemptions > 0) == (pages < PAGES)
    aborted = streams(deployed, pages=pages)
    for one in mix():
        aborted.scheduler.add(one, 0.0, None)
    for _ in range(6):
        aborted.loop.step()
    assert aborted.scheduler.abort("stream-3") is not None
    while not aborted.loop.idle:
        aborted.loop.step()
    assert aborted.scheduler.stats.used_pages == 0


def test_its_guesses_are_the_published_heads_from_chunks_and_from_shared_pages(deployed: Deployed) -> None:
    prompt = np.random.default_rng(4).integers(0, VOCAB_SIZE, 37).tolist()
    run = streams(deployed)
    text = [*prompt, *run.tokens([asked(0, prompt)])["stream-0"]]
    first = len(run.pending)
    assert run.tokens([asked(1, prompt)])["stream-1"] == text[len(prompt) :]
    assert run.scheduler.stats.prefix_cache_hits > 0
    model, _, _ = checkpoints.load(deployed.deployment.model.checkpoint, jnp.float32, layers="list")
    attend = dense_attend(1, len(text))

    @jax.jit
    def entering(token_ids: jax.Array) -> jax.Array:
        at = jnp.arange(len(text))
        return model.with_states(token_ids, at, None, attend, (0, 1, 2))[2]  # type: ignore[union-attr]

    states = np.array(entering(jnp.asarray(text)))
    assert 0 < first < len(run.pending)
    for step in run.pending:
        (planned,), (guesses,) = step.plan.ranges, step.guessed()
        known = planned.start + 1
        assert guesses == deployed.reference.chain(text[:known], states[: known - 1], len(guesses))[0]


def test_a_head_that_knows_the_model_is_always_right(deployed: Deployed, tmp_path: Path) -> None:
    """A model that goes round a cycle of its tokens, whatever came before; the head goes on from its states."""
    after = np.random.default_rng(6).permutation(VOCAB_SIZE)
    cycle = {int(a): int(b) for a, b in zip(after, np.roll(after, -1), strict=True)}
    identity, step = np.eye(D, dtype=np.float32), np.zeros((D, D), np.float32)
    for token, following in cycle.items():
        step[following, token] = 1.0  # step @ e(token) = e(following)
    drafter = deployed.executor._drafter
    assert drafter is not None
    of_model, of_head = deployed.executor._resident, drafter.resident
    before = of_model.weights, of_head.weights
    try:
        of_model.weights = _cycling_model(deployed, tmp_path / "model", identity, step)
        of_head.weights = _cycling_head(tmp_path / "head", identity, step, cycle)
        run = streams(deployed)
        made = run.tokens([asked(n, [n, 5, int(after[n])], max_tokens=12) for n in range(4)])
    finally:
        of_model.weights, of_head.weights = before
    for number in range(4):
        last, expected = int(after[number]), []
        for _ in range(12):
            last = cycle[last]
            expected.append(last)
        assert made[f"stream-{number}"] == expected
    assert run.speculator is not None
    missing = {token for token in cycle if token >= VOCAB_SIZE - 3}  # the head has no such tokens
    assert run.speculator.accepted >= 0.5 * run.speculator.guessed > 10
    for pending in run.pending:
        for guesses, planned in zip(pending.guessed(), pending.plan.ranges, strict=True):
            token = planned.token_ids[0]
            for guess in guesses:
                token = cycle[token]
                if token in missing:
                    break
                assert guess == token


def _cycling_model(deployed: Deployed, folder: Path, identity: np.ndarray, step: np.ndarray) -> tuple[Any, ...]:
    folder.mkdir()
    checkpoint = deployed.deployment.model.checkpoint
    tensors = load_file(checkpoint / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = np.zeros_like(value)
        elif "norm" in name:
            tensors[name] = np.ones_like(value)
    tensors |= {"model.embed_tokens.weight": identity, "lm_head.weight": step}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TARGET))
    model, _, _ = checkpoints.load(folder, jnp.float32, layers="list")
    return tuple(jax.tree.leaves(nnx.state(model)))


def _cycling_head(folder: Path, identity: np.ndarray, step: np.ndarray, cycle: dict[int, int]) -> tuple[Any, ...]:
    """Its MLP takes e(token) to e(following); what it draws from that is the one after it."""
    tensors = eagle3_checkpoint.weights(HEAD, 2)
    tensors = {name: np.ones_like(value) if "norm" in name else value for name, value in tensors.items()}
    peak = np.float32(np.sqrt(D))
    own = np.arange(VOCAB_SIZE - 3)
    before = {following: token for token, following in cycle.items()}
    tensors |= {
        "fc.weight": np.concatenate([identity, 0 * identity, 0 * identity], axis=1),
        "midlayer.self_attn.o_proj.weight": 0 * identity,
        "midlayer.mlp.gate_proj.weight": identity,
        "midlayer.mlp.up_proj.weight": identity,
        "midlayer.mlp.down_proj.weight": (step - identity) / (peak * peak / (1 + np.exp(-peak))),
        "lm_head.weight": np.stack([identity[before[int(token)]] for token in own]),
        "d2t": 0 * own,
        "t2d": np.arange(VOCAB_SIZE) < len(own),
    }
    eagle3_checkpoint.write(folder, HEAD, tensors)
    config = eagle3.describe(folder, 2)
    placement = Placement(one_device(), kv_copies=1)
    head = eagle3.load(folder, config, jnp.float32, placement=placement, table=jnp.zeros(1), max_length=96)
    return tuple(jax.tree.leaves(nnx.state(head)))


def test_what_does_not_go_together_is_refused(deployed: Deployed, tmp_path: Path) -> None:
    def load(target: Any, shape: ModelShape, checkpoint: Path, head: Path) -> None:
        deployment = dataclasses.replace(
            deployed.deployment,
            model=ModelConfig(checkpoint=checkpoint),
            speculation=SpeculationConfig(kind="eagle3", checkpoint=head),
        )
        load_head(deployment, target, shape, 96, jnp.float32, one_device(), lambda what, done, total: None)

    path, head = deployed.deployment.model.checkpoint, deployed.deployment.speculation.checkpoint
    assert head is not None
    model, shape, _ = checkpoints.load(path, jnp.float32, layers="list")
    with pytest.raises(ConfigError, match=r"32 tokens.*has 31"):
        load(model, dataclasses.replace(shape, vocab_size=31), path, head)
    wide = eagle3_checkpoint.write(tmp_path / "wide", HEAD | {"target_hidden_size": 64}, target_layers=2)
    with pytest.raises(ConfigError, match=r"64 wide hidden states.*has 32"):
        load(model, shape, path, wide)
    with pytest.raises(CheckpointError, match="draft_vocab_size"):
        load(model, shape, path, path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(TARGET | {"architectures": ["MistralForCausalLM"]}))
    with pytest.raises(ConfigError, match="Llama, Qwen2 and Qwen3"):
        load(model, shape, tmp_path / "other", head)
