"""The roofline is arithmetic that can be done by hand."""

import pytest

from serving.planner.roofline import Footprint, decode, prefill
from sharding.chips import CHIPS

H100 = CHIPS["h100"]
# Llama 3.1 8B in bfloat16 on one device: 7.5e9 weights read, 128 KiB of keys and values a position.
EIGHT_BILLION = Footprint(
    weight_bytes=15e9, page_bytes=131072, flops=15e9, attention_flops=4 * 32 * 128 * 32, link_bytes=0
)


def test_one_sequence_is_bound_by_reading_the_weights() -> None:
    step = decode(EIGHT_BILLION, H100, sequences=1, context=1000)
    assert step.bound == "memory"
    assert step.seconds == pytest.approx((15e9 + 131_072_000) / 3.35e12)
    assert step.tokens_per_second == pytest.approx(1 / step.seconds)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    step = prefill(EIGHT_BILLION, H100, tokens=8192)
    assert step.bound == "arithmetic"
    assert step.seconds == pytest.approx((8192 * 15e9 + 8192 * 8193 / 2 * 524288) / 989e12)


def test_messages_are_added_and_can_be_what_bounds() -> None:
    quiet = Footprint(weight_bytes=1e9, page_bytes=0, flops=0, attention_flops=0, link_bytes=0)
    loud = Footprint(weight_bytes=1e9, page_bytes=0, flops=0, attention_flops=0, link_bytes=4.5e9)
    assert decode(loud, H100, 1, 1).seconds == pytest.approx(decode(quiet, H100, 1, 1).seconds + 0.01)
    assert decode(loud, H100, 1, 1).bound == "links"


def test_few_tokens_read_few_experts_and_many_read_all() -> None:
    experts = Footprint(
        weight_bytes=0,
        expert_bytes=128e9,
        experts=128,
        experts_per_token=8,
        page_bytes=0,
        flops=0,
        attention_flops=0,
        link_bytes=0,
    )
    assert experts.expert_share(1) == pytest.approx(8 / 128)
    assert experts.expert_share(2) == pytest.approx(1 - (120 / 128) ** 2)
    assert experts.expert_share(4096) == pytest.approx(1)
    assert decode(experts, H100, 1, 1).memory_seconds == pytest.approx(8e9 / 3.35e12)
