"""A stream ends by the token, or by length."""

import pytest

from serving.engine.finishing import finish_reason
from serving.engine.request import FinishReason, SamplingParams

_SAMPLING = SamplingParams(eos_token_ids=(1, 2), stop_token_ids=(2, 3), min_tokens=2)


@pytest.mark.parametrize(
    ("token_id", "num_output", "num_tokens", "expected"),
    [
        (5, 4, 9, (None, None)),
        (1, 2, 9, (FinishReason.STOP, None)),
        (3, 2, 9, (FinishReason.STOP, 3)),
        (2, 2, 9, (FinishReason.STOP, None)),  # in both: an end of sequence needs no name
        (1, 1, 9, (None, None)),  # below min_tokens
        (3, 1, 9, (None, None)),
        (5, 4, 10, (FinishReason.LENGTH, None)),
        (1, 4, 10, (FinishReason.STOP, None)),  # the last token allowed happens to be a stop
        (1, 1, 10, (FinishReason.LENGTH, None)),
    ],
)
def test_the_reason_follows_token_and_counts(
    token_id: int, num_output: int, num_tokens: int, expected: tuple[FinishReason | None, int | None]
) -> None:
    assert finish_reason(token_id, _SAMPLING, num_output=num_output, num_tokens=num_tokens, max_tokens=10) == expected
