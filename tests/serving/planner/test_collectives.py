"""Collectives are read from HLO as three compilers write it, and loops count as often as they run."""

from collections import Counter

import pytest

from serving.planner.collectives import Collective, collectives_of

# As libtpu writes it: groups by the axes of a mesh, and no word of how often the loop runs.
TPU = """HloModule jit_f, is_scheduled=true

%body.1 (arg.2: (s32[], bf16[64,1024])) -> (s32[], bf16[64,1024]) {
  %all-reduce.2 = bf16[64,1024]{1,0:T(8,128)(2,1)S(1)} all-reduce(%fusion.29), channel_id=1, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, to_apply=%add.clone
  ROOT %tuple.1 = (s32[], bf16[64,1024]{1,0}) tuple(%add.16, %all-reduce.2)
}

%condition.1 (arg.3: (s32[], bf16[64,1024])) -> pred[] {
  ROOT %compare.1 = pred[] compare(%get-tuple-element.1, %constant.1), direction=LT
}

ENTRY %main.5 (p0: bf16[64,1024]) -> bf16[64,1024] {
  %while.9 = (s32[]{:T(128)}, bf16[64,1024]{1,0}) while(%tuple.14), condition=%condition.1, body=%body.1
  ROOT %all-gather.3 = f32[256,8]{1,0} all-gather(%x), replica_groups=[1,8]<=[8], dimensions={0}
}
"""  # noqa: E501 (a line is an instruction)

# As XLA:GPU writes it: starts and dones, and the loop's length.
GPU = """HloModule jit_f

%region_0 (arg: (s32[], bf16[64,1024])) -> (s32[], bf16[64,1024]) {
  %all-reduce-start = ((bf16[64,1024]{1,0}), bf16[64,1024]{1,0}) all-reduce-start(%fusion), replica_groups={{0,1,2,3}}, to_apply=%add
  %all-reduce-done = bf16[64,1024]{1,0} all-reduce-done(%all-reduce-start)
}

ENTRY %main (p0: bf16[64,1024]) -> bf16[64,1024] {
  %while.8 = (s32[], bf16[64,1024]{1,0}) while(%tuple.6), condition=%region_1, body=%region_0, backend_config={"known_trip_count":{"n":"12"}}
  %all-gather-start = (bf16[8,4]{1,0}, bf16[32,4]{1,0}) all-gather-start(%y), replica_groups={{0,1,2,3}}, dimensions={0}
}
"""  # noqa: E501 (a line is an instruction)


def test_a_loop_of_untold_length_runs_over_the_layers() -> None:
    assert collectives_of(TPU, layers=80) == Counter(
        {Collective("all-reduce", 64 * 1024 * 2, 4): 80, Collective("all-gather", 256 * 8 * 4, 8): 1}
    )


def test_a_loop_that_tells_its_length_runs_that_often_and_a_start_counts_its_result_once() -> None:
    assert collectives_of(GPU, layers=80) == Counter(
        {Collective("all-reduce", 64 * 1024 * 2, 4): 12, Collective("all-gather", 32 * 4 * 2, 4): 1}
    )


# A dispatch to experts, as libtpu writes it: few rows go into room for all that could arrive.
RAGGED = """HloModule jit_f

ENTRY %main (p0: bf16[32,1024]) -> bf16[128,1024] {
  %rows = bf16[32,1024]{1,0} parameter(0)
  %room = bf16[128,1024]{1,0} broadcast(%zero)
  ROOT %arrived = bf16[128,1024]{1,0} ragged-all-to-all(%rows, %room, %a, %b, %c, %d), replica_groups={{0,1,2,3}}
}
"""


def test_a_ragged_all_to_all_counts_its_rows_and_not_the_room_for_them() -> None:
    assert collectives_of(RAGGED, layers=1) == Counter({Collective("ragged-all-to-all", 32 * 1024 * 2, 4): 1})


def test_groups_that_cannot_be_read_are_an_error_and_not_a_guess() -> None:
    with pytest.raises(ValueError, match="groups"):
        collectives_of(GPU.replace("replica_groups={{0,1,2,3}}, to_apply", "to_apply"), layers=1)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 2 * 3 / 4 * 1000),
        ("all-gather", 3 / 4 * 1000),
        ("reduce-scatter", 3 * 1000),
        ("all-to-all", 3 / 4 * 1000),
        ("collective-permute", 1000),
    ],
)
def test_what_a_device_sends_is_that_of_a_ring(kind: str, sent: float) -> None:
    assert Collective(kind, 1000, 4).sent == sent
