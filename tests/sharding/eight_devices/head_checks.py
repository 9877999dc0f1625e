"""An EAGLE-3 head that is split over devices guesses as on one, and each device has its part of the states.

`scripts/check_meshes --heads` compares streams through the whole engine.
"""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from models import checkpoint as checkpoints
from pallas_kernels.dispatch import attention_body
from serving.engine import steps
from serving.engine.batch import BatchPacker
from serving.engine.block_pool import BlockPool
from serving.engine.drafting import Walk
from serving.engine.eagle_head import load_head
from serving.engine.hidden_pages import AnyPool, WatchedPool
from serving.engine.limits import ExecutorLimits
from serving.engine.scheduler import Scheduler
from serving.engine.stage import stages_of
from serving.planner.collectives import collectives_of
from sharding.mesh import make_mesh
from sharding.params import placement_of
from tests.sharding.eight_devices.tiny_head import DEPTH, LONGEST, VOCAB, D, HeadDeployment, requests

TOKENS, PAGES, FLOAT = 16, 32, jnp.dtype("float32")


class Step:
    """One step of the model and what its head makes of the states, on a mesh of these sizes, as one program."""

    def __init__(self, given: HeadDeployment, sizes: dict[str, int]) -> None:
        mesh = make_mesh(sizes)
        model, shape, _ = checkpoints.load(
            given.deployment.model.checkpoint, FLOAT, layers="list", placement=placement_of(mesh, 4, 2)
        )
        head = load_head(given.deployment, model, shape, LONGEST, FLOAT, mesh, lambda what, done, total: None)
        assert head is not None
        limits = ExecutorLimits(
            max_num_seqs=4,
            max_model_len=LONGEST,
            page_size=8,
            num_pages=PAGES,
            token_buckets=(TOKENS,),
            guesses=DEPTH,
            watched=head.watched,
        )
        body = attention_body("reference")
        (self._stage,) = stages_of(model, shape, limits, body, FLOAT, mesh)
        alone = ExecutorLimits(
            max_num_seqs=4, max_model_len=LONGEST, page_size=8, num_pages=PAGES, token_buckets=(TOKENS,)
        )
        (self._head,) = stages_of(head.model, head.shape, alone, body, FLOAT, mesh)
        self._guesser, self._layout = head.guesser, limits.layout_for(TOKENS)
        vector = planned(limits)
        given_to_it = (self._stage.weights, self._head.weights, self._stage.empty_pool(), self._head.empty_pool())
        self.program = jax.jit(self._computed).lower(*given_to_it, vector).compile()
        self.pool, self.logits = self.program(*given_to_it, vector)

    def _computed(
        self, weights: tuple[Array, ...], of_head: tuple[Array, ...], pool: AnyPool, its_pool: AnyPool, vector: Array
    ) -> tuple[AnyPool, Array]:
        fields = steps.unpack(vector, self._layout)
        program, head = self._stage.program, self._head.program
        token_ids = fields["token_ids"].reshape(-1)
        _, pool = steps.walked(program, program.model(weights), self._layout, fields, pool, token_ids)
        assert isinstance(pool, WatchedPool)
        guessing = head.model(of_head)
        x, _ = self._guesser.read(Walk(head, guessing, self._layout, fields, its_pool), pool.states)
        return pool, self._guesser.logits(head, guessing, x)


def planned(limits: ExecutorLimits) -> np.ndarray:
    """The batch of a first step: chunks of several prompts."""
    scheduler = Scheduler(
        max_model_len=LONGEST,
        max_num_seqs=4,
        max_num_batched_tokens=TOKENS,
        max_waiting=8,
        pool=BlockPool(PAGES, 8),
        vocab_size=VOCAB,
    )
    for one in requests():
        scheduler.add(one, 0.0, None)
    plan = scheduler.plan(0.0)
    assert plan is not None
    return np.asarray(BatchPacker(4, limits.table_width, limits.layout_for, 1).pack(plan).vector)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> HeadDeployment:
    return HeadDeployment(tmp_path_factory.mktemp("head") / "model", "LlamaForCausalLM")


def test_a_split_head_computes_what_a_whole_one_does(given: HeadDeployment) -> None:
    whole, split = Step(given, {}), Step(given, {"tensor": 4})
    assert np.isfinite(np.asarray(whole.logits)).sum(axis=1).tolist() == [27] * TOKENS
    np.testing.assert_allclose(split.logits, whole.logits, atol=1e-4)
    states = split.pool.states
    assert states.sharding.shard_shape(states.shape) == (PAGES, 8, 16)  # a fourth of two widths of 31, padded
    np.testing.assert_allclose(states[..., : 2 * D], whole.pool.states, atol=1e-5)
    text = split.program.as_text()
    assert text is not None
    found: Counter[str] = Counter()
    for one, count in collectives_of(text, 1).items():
        found[one.kind] += count
    # Of the model its embedding and the two of its layer; of the head fc, its embedding, two and its logits. Some may
    # be done as one.
    assert set(found) == {"all-reduce", "all-gather"}
    assert found["all-reduce"] <= 1 + 2 + 2 + 2
    assert found["all-gather"] == 1
