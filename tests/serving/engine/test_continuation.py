import pytest

from serving.engine.continuation import continued, end_reached, without_first_facts
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent, TokenLogprobs


def request(**sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 5, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id="r", prompt_token_ids=(1, 2), sampling=params, output_token_ids=(9,))


def test_a_continuation_has_all_tokens_so_far_and_scores_no_prompt_again() -> None:
    rest = continued(request(prompt_logprobs=2, logprobs=1), [3, 4])
    assert rest.output_token_ids == (9, 3, 4)
    assert rest.sampling.prompt_logprobs is None
    assert rest.sampling.logprobs == 1


def test_what_a_stream_says_once_is_not_said_again() -> None:
    event = TokenEvent(
        request_id="r", token_ids=(1,), cached_tokens=3, queue_seconds=1.0, prompt_logprobs=(TokenLogprobs(1, 0.0, 1),)
    )
    assert without_first_facts(event) == TokenEvent(request_id="r", token_ids=(1,))


@pytest.mark.parametrize(
    ("sampling", "tokens", "window", "end"),
    [
        ({}, [], 100, None),
        ({}, [3, 4, 5], 100, None),
        ({}, [3, 4, 5, 6], 100, (FinishReason.LENGTH, None)),
        ({}, [3, 4], 5, (FinishReason.LENGTH, None)),
        ({"eos_token_ids": (4,)}, [3, 4], 100, (FinishReason.STOP, None)),
        ({"stop_token_ids": (4,)}, [3, 4], 100, (FinishReason.STOP, 4)),
        ({"eos_token_ids": (4,), "stop_token_ids": (4,)}, [3, 4], 100, (FinishReason.STOP, None)),
        ({"stop_token_ids": (4,)}, [4, 3], 100, None),
        ({"stop_token_ids": (4,), "min_tokens": 3}, [3, 4], 100, None),
    ],
)
def test_an_end_that_only_was_lost_is_known(
    sampling: dict[str, object], tokens: list[int], window: int, end: tuple[FinishReason, int | None] | None
) -> None:
    found = end_reached(request(**sampling), tokens, window)
    assert (found and (found.finish_reason, found.stop_token_id)) == end
