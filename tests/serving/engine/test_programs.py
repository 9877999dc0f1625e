"""Which programs are compiled, of which buckets."""

import pytest

from serving.engine.limits import ExecutorLimits
from serving.engine.programs import layouts_of_decode


@pytest.mark.parametrize(
    ("buckets", "rows", "decode"),
    [((1, 8, 32, 64), 32, [1, 8, 32]), ((8,), 4, [8]), ((16, 64, 128), 32, [16, 64]), ((8, 8 * 4), 64, [8, 32])],
)
def test_each_step_with_one_token_of_each_sequence_has_a_program_that_decodes_on(
    buckets: tuple[int, ...], rows: int, decode: list[int]
) -> None:
    limits = ExecutorLimits(max_num_seqs=rows, max_model_len=64, page_size=8, num_pages=9, token_buckets=buckets)
    found = layouts_of_decode([limits.layout_for(bucket) for bucket in buckets])
    assert [layout.tokens for layout in found] == decode
    assert {limits.layout_for(n) for n in range(1, min(rows, buckets[-1]) + 1)} == set(found)
