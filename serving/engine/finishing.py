"""When a stream ends: a pure function of the token just sampled."""

from serving.engine.request import FinishReason, SamplingParams


def finish_reason(
    token_id: int, sampling: SamplingParams, *, num_output: int, num_tokens: int, max_tokens: int
) -> tuple[FinishReason | None, int | None]:
    """Why the stream ends with `token_id`, and the entry of stop_token_ids that ended it; (None, None) to go on.

    `num_output` counts the output tokens before this one, as in `Range.num_output`: below min_tokens no token stops
    the stream. `num_tokens` counts prompt and output with this one; `max_tokens` is the most that they may be.
    """
    if num_output >= sampling.min_tokens:
        if token_id in sampling.eos_token_ids:
            return FinishReason.STOP, None
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
    if num_tokens >= max_tokens:
        return FinishReason.LENGTH, None
    return None, None
