"""What is asked of an engine for the rest of a stream, after the engine or the API process that had it was lost.

Noise depends on (seed, position) alone, so the rest is what would have come.
"""

import dataclasses
from collections.abc import Sequence

from serving.engine.finishing import finish_reason
from serving.engine.request import GenerateRequest, TokenEvent


def continued(request: GenerateRequest, token_ids: Sequence[int]) -> GenerateRequest:
    """`request` after `token_ids` were delivered; its prompt has been scored."""
    sampling = request.sampling
    if sampling.prompt_logprobs is not None:
        sampling = dataclasses.replace(sampling, prompt_logprobs=None)
    output = (*request.output_token_ids, *token_ids)
    return dataclasses.replace(request, sampling=sampling, output_token_ids=output)


def without_first_facts(event: TokenEvent) -> TokenEvent:
    """A continuation's event without what a stream says once."""
    return dataclasses.replace(event, prompt_logprobs=(), cached_tokens=None, queue_seconds=None)


def end_reached(request: GenerateRequest, token_ids: Sequence[int], max_model_len: int) -> TokenEvent | None:
    """The last event, where only it was lost: `token_ids`, all that was delivered, complete the stream. A stream that
    has delivered none cannot be told from one that had only to score its prompt, and begins again."""
    if not token_ids:
        return None
    sampling, prompt = request.sampling, len(request.prompt_token_ids)
    output = len(request.output_token_ids) + len(token_ids)
    reason, stop_token_id = finish_reason(
        token_ids[-1],
        sampling,
        num_output=output - 1,
        num_tokens=prompt + output,
        max_tokens=min(prompt + sampling.max_tokens, max_model_len),
    )
    if reason is None:
        return None
    return TokenEvent(request_id=request.request_id, finish_reason=reason, stop_token_id=stop_token_id)
