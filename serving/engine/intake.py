"""Requests that can never run are refused before they are queued, each with the field at fault."""

from serving.engine.block_pool import BlockPool
from serving.engine.request import GenerateRequest
from serving.engine.sequence import Sequence
from serving.errors import ContextLengthError, RequestError


def refuse_malformed(request: GenerateRequest, *, vocab_size: int) -> None:
    """Raises RequestError where a field has a value that no engine could run."""
    if not request.request_id:
        raise RequestError("request_id is empty", param="request_id", code="invalid_request_id")
    if not request.prompt_token_ids:
        raise RequestError("the prompt has no tokens", param="prompt_token_ids", code="empty_prompt")
    for name, token_ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("output_token_ids", request.output_token_ids),
    ):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise RequestError(f"each of {name} must lie in 0 .. {vocab_size - 1}", param=name, code="invalid_token_id")
    if request.sampling.max_tokens < 0:
        raise RequestError("max_tokens must be at least 0", param="max_tokens", code="invalid_max_tokens")


def refuse_unfitting(sequence: Sequence, pool: BlockPool, *, max_model_len: int) -> None:
    """Raises ContextLengthError where the request exceeds the window or would not fit the pool even alone, and
    RequestError where it continues a stream that has already ended."""
    max_tokens = sequence.sampling.max_tokens
    room = max_model_len if sequence.scoring_only else max_model_len - 1
    if sequence.num_prompt > room:
        raise ContextLengthError(
            f"the prompt has {sequence.num_prompt} tokens; with max_tokens={max_tokens} it may have {room}, "
            f"since the window is {max_model_len} tokens",
            param="prompt_token_ids",
        )
    num_output = len(sequence.request.output_token_ids)
    if num_output and len(sequence.tokens) >= sequence.max_length:
        raise RequestError(
            f"output_token_ids has {num_output} tokens, and max_tokens and the window leave room for "
            f"{sequence.max_length - sequence.num_prompt}: the stream has already ended",
            param="output_token_ids",
            code="stream_ended",
        )
    needed = pool.pages_for(sequence.num_positions)
    if needed > pool.num_pages:
        raise ContextLengthError(
            f"the prompt of {sequence.num_prompt} tokens with max_tokens={max_tokens} may need {needed} pages of "
            f"{pool.page_size} tokens; the engine has {pool.num_pages}",
            param="max_tokens",
        )
