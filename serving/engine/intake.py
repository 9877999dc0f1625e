"""Requests that can never run are refused before they are queued, each with the field at fault.

Whatever a step would raise for is refused here: an exception inside the loop ends every stream of the engine.
"""

import math
from collections.abc import Iterable

from serving.engine.block_pool import BlockPool
from serving.engine.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_EOS_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
    MAX_TENANT_CHARS,
    GenerateRequest,
    SamplingParams,
)
from serving.engine.sequence import Sequence
from serving.errors import ContextLengthError, RequestError, UnsupportedError


def refuse_malformed(request: GenerateRequest, *, vocab_size: int) -> None:
    """Raises RequestError where a field has a value that no engine could run."""
    if not request.request_id:
        raise RequestError("request_id is empty", param="request_id", code="invalid_request_id")
    if not request.prompt_token_ids:
        raise RequestError("the prompt has no tokens", param="prompt_token_ids", code="empty_prompt")
    _check_ids("prompt_token_ids", request.prompt_token_ids, vocab_size)
    _check_ids("output_token_ids", request.output_token_ids, vocab_size)
    if request.sampling.max_tokens < 0:
        raise RequestError("max_tokens must be at least 0", param="max_tokens", code="invalid_max_tokens")
    _check_sampler_bounds(request.sampling, vocab_size)
    _check_service(request)


def refuse_unpinnable(name: str, token_ids: tuple[int, ...], seconds: float, *, vocab_size: int) -> None:
    """Raises RequestError where a pin has a value that no prefix could have."""
    if not 0 < len(name) <= MAX_TENANT_CHARS:
        raise RequestError(
            f"a pin's name must have 1 to {MAX_TENANT_CHARS} characters, not {len(name)}",
            param="name",
            code="invalid_value",
        )
    if not 0 < seconds < math.inf:
        raise RequestError(f"seconds must be above 0 and finite, not {seconds}", param="seconds", code="invalid_value")
    _check_ids("token_ids", token_ids, vocab_size)


def _check_service(request: GenerateRequest) -> None:
    """Who is served, how much of it, and until when."""
    if len(request.tenant) > MAX_TENANT_CHARS:
        raise RequestError(
            f"tenant may have at most {MAX_TENANT_CHARS} characters, not {len(request.tenant)}",
            param="tenant",
            code="invalid_value",
        )
    for name, value in (("tenant_weight", request.tenant_weight), ("deadline_seconds", request.deadline_seconds)):
        if value is not None and not 0 < value < math.inf:
            raise RequestError(f"{name} must be above 0 and finite, not {value}", param=name, code="invalid_value")


def _check_sampler_bounds(sampling: SamplingParams, vocab_size: int) -> None:
    """What a row of `sampler_rows` has room for, and the integers of a `batch`."""
    biased = [token_id for token_id, _ in sampling.logit_bias]
    for name, ids, most in (
        ("logit_bias", biased, MAX_LOGIT_BIAS),
        ("allowed_token_ids", sampling.allowed_token_ids, None),
        ("eos_token_ids", sampling.eos_token_ids, MAX_EOS_TOKEN_IDS),
        ("stop_token_ids", sampling.stop_token_ids, MAX_STOP_TOKEN_IDS),
    ):
        _check_count(name, len(ids), most)
        _check_ids(name, ids, vocab_size)
    _check_count("bad_words", len(sampling.bad_words), MAX_BAD_WORDS)
    for word in sampling.bad_words:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"each of bad_words must have 1 to {MAX_BAD_WORD_TOKENS} tokens, not {len(word)}",
                param="bad_words",
                code="invalid_value",
            )
        _check_ids("bad_words", word, vocab_size)
    for name, number, most in (
        ("top_k", sampling.top_k, 2**31 - 1),
        ("min_tokens", sampling.min_tokens, 2**31 - 1),
        ("seed", sampling.seed, MAX_SEED),
        ("logprobs", sampling.logprobs or 0, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs or 0, MAX_LOGPROBS),
    ):
        if not 0 <= number <= most:
            raise RequestError(f"{name} must lie in 0 .. {most}, not {number}", param=name, code="invalid_value")


def refuse_beside_grammar(sampling: SamplingParams) -> None:
    """Raises RequestError for what could leave a stream under a grammar without any token to draw."""
    for name, given, reason in (
        ("min_tokens", sampling.min_tokens > 0, "the grammar decides when a text may end"),
        ("ignore_eos", not sampling.eos_token_ids, "a text that is complete has to end"),
        ("allowed_token_ids", bool(sampling.allowed_token_ids), "the grammar alone says which tokens are allowed"),
        ("bad_words", bool(sampling.bad_words), "the grammar may leave no other word"),
    ):
        if given:
            raise UnsupportedError(f"{name} is not supported beside a grammar: {reason}", param=name)


def _check_count(name: str, count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise RequestError(f"{name} may have at most {most} entries, not {count}", param=name, code="too_many_entries")


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    ids = tuple(ids)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise RequestError(f"each of {name} must lie in 0 .. {vocab_size - 1}", param=name, code="invalid_token_id")


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
