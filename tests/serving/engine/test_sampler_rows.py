from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from serving.engine.plan import Admission
from serving.engine.request import MAX_BAD_WORDS, MAX_LOGIT_BIAS, SamplingParams
from serving.engine.sampler_rows import (
    MAX_COUNT,
    NO_ID,
    SamplerRows,
    admission_arrays,
    admit,
    bitmask,
    init_rows,
    record,
)
from serving.engine.sampling import greedy, sample
from tests.serving.engine.sampler_reference import packed

SAMPLING = SamplingParams(
    frequency_penalty=0.5,
    logit_bias=((1, 2.0), (40, -1.0)),
    allowed_token_ids=(0, 31, 32, 69),
    bad_words=((3,), (4, 5, 6)),
    eos_token_ids=(2,),
    stop_token_ids=(9,),
)

jit_admit = jax.jit(admit)
jit_record = jax.jit(record)


def admission(row: int, output: tuple[int, ...] = (), sampling: SamplingParams = SAMPLING) -> Admission:
    return Admission(row=row, sampling=sampling, prompt_token_ids=(7, 69, 7), output_token_ids=output)


def assert_rows_equal(a: SamplerRows, b: SamplerRows) -> None:
    for field in fields(a):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), err_msg=field.name)


def test_admission_lays_out_every_field() -> None:
    setup = admission_arrays(admission(3, output=(5, 5, 8)), 70)
    assert (int(setup.row), int(setup.last_token)) == (3, 8)
    assert {int(i): int(setup.output_counts[i]) for i in np.flatnonzero(setup.output_counts)} == {5: 2, 8: 1}
    assert setup.prompt_seen.tolist() == [1 << 7, 0, 1 << 5]
    assert setup.allowed.tolist() == [1 | 1 << 31, 1, 1 << 5]
    assert setup.bias_ids[:3].tolist() == [1, 40, NO_ID]
    assert setup.bias_values[:3].tolist() == [2.0, -1.0, 0.0]
    assert setup.stop_ids[:3].tolist() == [2, 9, NO_ID]
    assert setup.bad_words[:3, -3:].tolist() == [[NO_ID, NO_ID, 3], [4, 5, 6], [NO_ID] * 3]
    assert setup.recent[-4:].tolist() == [NO_ID, 5, 5, 8]


def test_admission_without_output_continues_from_the_prompt() -> None:
    setup = admission_arrays(admission(0), 70)
    assert int(setup.last_token) == 7
    assert not setup.output_counts.any()


def test_admission_writes_one_row_and_no_other() -> None:
    neutral = init_rows(4, 70)
    rows = jit_admit(neutral, admission_arrays(admission(2, output=(5,)), 70))
    for field in fields(rows):
        before, after = np.asarray(getattr(neutral, field.name)), np.asarray(getattr(rows, field.name))
        np.testing.assert_array_equal(after[[0, 1, 3]], before[[0, 1, 3]], err_msg=field.name)
        assert not np.array_equal(after[2], before[2]), field.name


def test_admission_leaves_nothing_of_the_row_before_it() -> None:
    plain = admission_arrays(admission(1, sampling=SamplingParams()), 70)
    used = jit_admit(init_rows(2, 70), admission_arrays(admission(1, output=(1, 2, 3)), 70))
    assert_rows_equal(jit_admit(used, plain), jit_admit(init_rows(2, 70), plain))


def test_a_readmitted_row_equals_the_row_that_lived_through_its_tokens() -> None:
    output = tuple(int(t) for t in np.random.default_rng(0).integers(0, 70, 12))
    lived = jit_admit(init_rows(2, 70), admission_arrays(admission(1), 70))
    for token in output:
        lived = jit_record(lived, jnp.array([1]), jnp.array([token]))
    assert_rows_equal(lived, jit_admit(init_rows(2, 70), admission_arrays(admission(1, output), 70)))


def test_counts_saturate() -> None:
    rows = jit_admit(init_rows(2, 70), admission_arrays(admission(0, output=(5,) * (MAX_COUNT - 1)), 70))
    for _ in range(3):
        rows = jit_record(rows, jnp.array([0]), jnp.array([5]))
    assert int(rows.output_counts[0, 5]) == MAX_COUNT
    too_many = admission_arrays(admission(0, output=(5,) * (MAX_COUNT + 9)), 70)
    assert int(too_many.output_counts[5]) == MAX_COUNT


def test_padding_writes_nothing() -> None:
    before = init_rows(3, 70)
    logits = jnp.full((4, 70), jnp.nan).at[1].set(jnp.arange(70.0))
    params = packed([SamplingParams(temperature=0.0)] * 4, rows=[3, 1, 0, 2**31 - 1])
    params = replace(params, needs_sample=jnp.array([False, True, False, False]))
    after, tokens = jax.jit(sample)(before, logits, params)
    last_token, greedy_tokens = jax.jit(greedy)(before.last_token, logits, params)
    assert tokens.tolist() == greedy_tokens.tolist() == [NO_ID, 69, NO_ID, NO_ID]
    assert after.last_token.tolist() == last_token.tolist() == [0, 69, 0]
    np.testing.assert_array_equal(after.recent[np.array([0, 2])], before.recent[np.array([0, 2])])
    assert not np.asarray(after.output_counts)[[0, 2]].any()


def test_steps_and_admissions_update_the_state_in_place() -> None:
    vocab, num_rows = 4096, 64
    counts_bytes = 2 * vocab * num_rows
    rows = init_rows(num_rows, vocab)
    pointers = {f.name: getattr(rows, f.name).unsafe_buffer_pointer() for f in fields(rows)}
    setup = jax.device_put(admission_arrays(admission(5, output=(1,), sampling=SAMPLING), vocab))
    params = packed([SAMPLING, SAMPLING], rows=[5, 6])
    logits = jnp.zeros((2, vocab))
    admit_compiled = jax.jit(admit, donate_argnums=0).lower(rows, setup).compile()
    sample_compiled = jax.jit(sample, donate_argnums=0).lower(rows, logits, params).compile()
    for compiled in (admit_compiled, sample_compiled):
        analysis = compiled.memory_analysis()
        assert analysis is not None
        assert analysis.temp_size_in_bytes < counts_bytes / 2
        assert analysis.alias_size_in_bytes >= counts_bytes
    rows = admit_compiled(rows, setup)
    rows, _ = sample_compiled(rows, logits, params)
    assert {f.name: getattr(rows, f.name).unsafe_buffer_pointer() for f in fields(rows)} == pointers


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="logit_bias"):
        admission_arrays(admission(0, sampling=SamplingParams(logit_bias=((1, 1.0),) * (MAX_LOGIT_BIAS + 1))), 70)
    with pytest.raises(ValueError, match="bad_words"):
        admission_arrays(admission(0, sampling=SamplingParams(bad_words=((1,),) * (MAX_BAD_WORDS + 1))), 70)
    with pytest.raises(ValueError, match="output_token_ids"):
        admission_arrays(admission(0, output=(70,)), 70)
    with pytest.raises(IndexError):
        bitmask([70], 70)
