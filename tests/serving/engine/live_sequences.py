"""Sequences for tests of the rules that look at them."""

from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.sequence import Sequence


def sequence(
    prompt: tuple[int, ...] = (1, 2, 3),
    sampling: SamplingParams | None = None,
    *,
    output: tuple[int, ...] = (),
    arrival_number: int = 0,
    max_model_len: int = 100,
    page_size: int = 4,
) -> Sequence:
    return Sequence(
        GenerateRequest(
            request_id=f"stream-{arrival_number}",
            prompt_token_ids=prompt,
            output_token_ids=output,
            sampling=sampling or SamplingParams(),
        ),
        arrival_number=arrival_number,
        arrival_time=0.0,
        max_model_len=max_model_len,
        page_size=page_size,
        namespace="model",
    )
