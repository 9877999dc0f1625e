"""A CPU's own attention body against the definition, and what is its own: compiled decode over float32 pages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from pallas_kernels.cpu.decode import attend_pages
from pallas_kernels.cpu.paged_attention import MOST_QUERIES, paged_attention
from pallas_kernels.cpu.vectors import exponentials
from pallas_kernels.ragged import AttentionOptions, RaggedBatch
from pallas_kernels.reference.online_softmax import begin, finish
from tests.pallas_kernels.attention_oracle import attend_one
from tests.pallas_kernels.attention_trial import LONGEST, ROWS, SETTINGS, Setting, Trial

OWN_SETTINGS = SETTINGS | {
    "more query heads than are compiled for": Setting(kv_heads=1, group=MOST_QUERIES + 1),
    "a head of five numbers": Setting(head_dim=5, group=3),
    "bfloat16 over pages of float32": Setting(dtype="bfloat16", pages="float32"),
}


@pytest.fixture(params=OWN_SETTINGS.values(), ids=list(OWN_SETTINGS), scope="module")
def trial(request: pytest.FixtureRequest) -> Trial:
    return Trial("cpu", request.param)


def test_mixes_of_decode_prefill_and_padding_attend_by_the_definition(trial: Trial) -> None:
    for _ in range(3):
        trial.run(*trial.random_batch())
    trial.run([], [], 0)


def test_rows_of_all_lengths_decode_beside_each_other(trial: Trial) -> None:
    trial.run([0, 1, 7, 8, 9, 63, 64, LONGEST - 1], [1] * ROWS, ROWS)


@pytest.mark.parametrize("shared", [47, 200])
def test_what_sequences_share_is_not_read_again(trial: Trial, shared: int) -> None:
    trial.run([shared, 299, shared + 1, 260, shared], [1] * 5, 5, shared)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 35])
def test_any_number_of_rows_is_taken_in_turns(rows: int) -> None:
    random = np.random.default_rng(3)
    kv_heads, group, head_dim, page_size, width = 2, 3, 16, 4, 5
    pool = random.normal(size=(rows * width, 2, page_size, 2 * kv_heads, head_dim)).astype(np.float32)
    queries = random.normal(size=(rows, kv_heads, group, head_dim)).astype(np.float32)
    table = random.permutation(rows * width).reshape(rows, width).astype(np.int32)
    end = random.integers(0, page_size * width + 1, rows).astype(np.int32)
    start = random.integers(0, page_size * width, rows).astype(np.int32)
    carry = begin(jnp.asarray(queries), head_dim, None)
    found = jax.jit(lambda pool: finish(attend_pages(carry, queries, pool, 1, table, start, end, None)))(pool)
    right = np.zeros((rows, kv_heads, group, head_dim))
    for row in range(rows):
        kept = pool[table[row], 1].reshape(-1, kv_heads, 2, head_dim)[start[row] : end[row]]
        if len(kept):
            flat = queries[row].reshape(-1, head_dim)
            right[row] = attend_one(flat, kept[:, :, 0], kept[:, :, 1], AttentionOptions(1.0)).reshape(right[row].shape)
    np.testing.assert_allclose(found, right, atol=1e-5)


def test_exponentials_are_right_to_float32() -> None:
    x = np.concatenate([np.linspace(-87, 0, 4001), [-0.0, -1e30, -88]]).astype(np.float32)
    right = np.exp(np.maximum(x, np.float32(-87)).astype(np.float64))
    out = np.zeros_like(x)
    exponentials(x + np.float32(0), out, np.float32(0), len(x))
    np.testing.assert_allclose(out, right, rtol=3e-7)
    assert out[np.argmax(x)] == 1


def test_a_score_that_is_not_a_number_stays_one() -> None:
    x = np.array([0, np.nan, -1], np.float32)
    out = np.zeros_like(x)
    exponentials(x, out, np.float32(0), 3)
    np.testing.assert_array_equal(np.isnan(out), [False, True, False])


def test_the_pool_is_written_and_read_in_place_in_loops_over_layers_and_steps() -> None:
    rows, layers, shape = 8, 3, (40, 3, 16, 4, 32)

    def step(pool: Array, q: Array, batch: RaggedBatch) -> tuple[Array, Array]:
        def one(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            pool, q = state
            for layer in range(layers):
                out, pool = paged_attention(q, q[:, :2], q[:, 2:], pool, layer, batch, AttentionOptions(0.2))
                q = q + out
            return pool, q

        return lax.fori_loop(0, 4, one, (pool, q))

    numbers = jnp.arange(rows, dtype=jnp.int32)
    batch = RaggedBatch(
        page_table=numbers[:, None] * 4 + jnp.arange(4)[None],
        kv_lens=numbers + 20,
        cu_q_lens=jnp.arange(rows + 1, dtype=jnp.int32),
        num_decode=jnp.int32(rows),
        num_seqs=jnp.int32(rows),
        positions=numbers + 19,
        sequence_ids=numbers,
    )
    pool, q = jnp.zeros(shape), jnp.ones((rows, 4, 32))
    program = jax.jit(step, donate_argnums=0).lower(pool, q, batch).compile()
    assert program.memory_analysis().alias_size_in_bytes >= pool.nbytes
    assert not re.findall(rf"= f32\[{','.join(map(str, shape))}\]\S* copy\(", program.as_text())
