"""A request that can never run is refused, and the refusal names the field."""

import dataclasses
import math

import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.intake import refuse_malformed, refuse_unfitting
from serving.engine.request import GenerateRequest, SamplingParams
from serving.errors import ContextLengthError, RequestError
from tests.serving.engine.live_sequences import sequence

PLAIN = GenerateRequest(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams())


@pytest.mark.parametrize(
    ("param", "request_"),
    [
        ("request_id", GenerateRequest(request_id="", prompt_token_ids=(1,), sampling=SamplingParams())),
        ("prompt_token_ids", GenerateRequest(request_id="a", prompt_token_ids=(), sampling=SamplingParams())),
        ("prompt_token_ids", GenerateRequest(request_id="a", prompt_token_ids=(1, 9), sampling=SamplingParams())),
        ("prompt_token_ids", GenerateRequest(request_id="a", prompt_token_ids=(-1,), sampling=SamplingParams())),
        (
            "output_token_ids",
            GenerateRequest(
                request_id="a", prompt_token_ids=(1,), output_token_ids=(2**40,), sampling=SamplingParams()
            ),
        ),
        (
            "max_tokens",
            GenerateRequest(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=-1)),
        ),
        *(
            ("min_tokens", dataclasses.replace(PLAIN, sampling=SamplingParams(min_tokens=value)))
            for value in (-1, 2**31, 2**70)
        ),
        *(
            (name, dataclasses.replace(PLAIN, **{name: value}))
            for name in ("tenant_weight", "deadline_seconds")
            for value in (0.0, -1.0, math.inf, math.nan)
        ),
        ("tenant", dataclasses.replace(PLAIN, tenant="t" * 257)),
    ],
)
def test_a_malformed_request_is_refused_by_field(param: str, request_: GenerateRequest) -> None:
    with pytest.raises(RequestError) as refusal:
        refuse_malformed(request_, vocab_size=9)
    assert refusal.value.param == param


def test_every_token_of_the_vocabulary_is_accepted() -> None:
    request = GenerateRequest(request_id="a", prompt_token_ids=(0, 8), sampling=SamplingParams())
    refuse_malformed(request, vocab_size=9)


def test_a_prompt_must_leave_room_for_a_token_unless_none_is_asked_for() -> None:
    pool = BlockPool(100, 4)
    refuse_unfitting(sequence((1,) * 9, max_model_len=10), pool, max_model_len=10)
    with pytest.raises(ContextLengthError, match="window is 10 tokens") as refusal:
        refuse_unfitting(sequence((1,) * 10, max_model_len=10), pool, max_model_len=10)
    assert refusal.value.param == "prompt_token_ids"
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=0)
    refuse_unfitting(sequence((1,) * 10, scoring, max_model_len=10), pool, max_model_len=10)
    with pytest.raises(ContextLengthError):
        refuse_unfitting(sequence((1,) * 11, scoring, max_model_len=10), pool, max_model_len=10)


def test_a_request_must_fit_the_pool_with_all_that_it_may_generate_but_its_last_token() -> None:
    pool = BlockPool(2, 4)
    refuse_unfitting(sequence((1,) * 3, SamplingParams(max_tokens=6)), pool, max_model_len=100)
    with pytest.raises(ContextLengthError, match="may need 3 pages of 4 tokens; the engine has 2"):
        refuse_unfitting(sequence((1,) * 3, SamplingParams(max_tokens=7)), pool, max_model_len=100)


def test_a_window_smaller_than_max_tokens_bounds_what_must_fit() -> None:
    refuse_unfitting(
        sequence((1,) * 3, SamplingParams(max_tokens=1000), max_model_len=9), BlockPool(2, 4), max_model_len=9
    )


def test_a_stream_that_has_already_ended_cannot_continue() -> None:
    pool = BlockPool(100, 4)
    refuse_unfitting(sequence((1,), SamplingParams(max_tokens=3), output=(2, 2)), pool, max_model_len=100)
    with pytest.raises(RequestError, match="already ended") as refusal:
        refuse_unfitting(sequence((1,), SamplingParams(max_tokens=2), output=(2, 2)), pool, max_model_len=100)
    assert refusal.value.param == "output_token_ids"
