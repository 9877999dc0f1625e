"""The compilers know the slices and nodes that weft plans for."""

import pytest

from sharding.topology import devices_of, parse_topology


@pytest.mark.parametrize("text", ["v5e:2x2", "v5p:2x2x2", "v6e:2x4", "h100:1", "h200:8", "h200:16"])
def test_a_topology_has_its_devices_without_the_hardware(text: str) -> None:
    topology = parse_topology(text)
    devices = devices_of(topology)
    assert len(devices) == topology.count
    assert {device.platform for device in devices} == {topology.chip.kind}


def test_a_slice_that_is_not_made_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="v6e:3x5"):
        devices_of(parse_topology("v6e:3x5"))
