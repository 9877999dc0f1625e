"""A topology is read strictly: what cannot be rented cannot be planned for."""

import pytest

from sharding.chips import CHIPS, chip_of
from sharding.topology import parse_topology


@pytest.mark.parametrize(
    ("text", "chip", "count"),
    [
        ("v5p:2x2x2", "v5p", 8),
        ("v6e:4x4", "v6e", 16),
        ("v5e:2x2", "v5e", 4),
        ("h100:8", "h100", 8),
        ("h200:16", "h200", 16),
    ],
)
def test_a_topology_names_a_chip_and_how_many(text: str, chip: str, count: int) -> None:
    topology = parse_topology(text)
    assert (topology.chip, topology.count, str(topology)) == (CHIPS[chip], count, text)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("h100", "CHIP:SIZE"),
        ("h100:", "CHIP:SIZE"),
        ("a100:8", "h100"),
        ("h100:12", "h100:8"),
        ("h100:2x4", "h100:8"),
        ("h100:0", "h100:8"),
        ("v5p:2x2", "v5p:2x2x2"),
        ("v5e:8", "v5e:2x4"),
        ("v6e:0x4", "v6e:2x4"),
    ],
)
def test_one_that_cannot_be_is_refused_with_one_that_can(text: str, right: str) -> None:
    with pytest.raises(ValueError, match=right):
        parse_topology(text)


@pytest.mark.parametrize(
    ("device_kind", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("cpu", None),
        ("NVIDIA A100-SXM4-80GB", None),
    ],
)
def test_a_device_is_known_by_what_jax_calls_it(device_kind: str, chip: str | None) -> None:
    assert chip_of(device_kind) == (None if chip is None else CHIPS[chip])
