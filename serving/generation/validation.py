"""Bounds of every option, for all protocols, and the engine's sampling parameters that follow from them."""

import math
import secrets
from collections.abc import Iterable, Sequence

from serving.engine.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)
from serving.errors import CheckpointError, ContextLengthError, RequestError
from serving.generation.checkpoint_text import SamplingDefaults
from serving.generation.request import GenerationOptions
from serving.generation.tokenizer import Tokenizer

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 512
MAX_BAD_WORD_CHARS = 256
GREEDY_BELOW = 1e-5  # a temperature under this cannot be told from greedy in float32

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}


def check_text(text: str, param: str) -> None:
    """Lone surrogates have no UTF-8 form, so no tokenizer can encode them. Raises RequestError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} has a lone surrogate ({text[error.start]!a}) at character {error.start}, which is not valid text",
            param=param,
        ) from None


def count_of_ids(tokenizer: Tokenizer) -> int:
    """How many ids a client may send: the model's. A padded vocabulary has some without a token, which can be drawn
    all the same."""
    return tokenizer.checkpoint.vocab_size or tokenizer.vocab_size


def check_encoded(ids: Sequence[int], tokenizer: Tokenizer, param: str) -> None:
    """Raises RequestError where a text has tokens that the model lacks."""
    size = count_of_ids(tokenizer)
    if size < tokenizer.vocab_size and max(ids, default=0) >= size:
        lacking = next(token_id for token_id in ids if token_id >= size)
        raise RequestError(
            f"{param} has the text {tokenizer.piece(lacking)!r}, whose token {lacking} the model lacks: the "
            f"checkpoint's tokenizer has more tokens than its model, whose ids are 0 .. {size - 1}",
            param=param,
            code="invalid_value",
        )


def check_token_ids(ids: Iterable[int], vocab_size: int, param: str) -> tuple[int, ...]:
    """Raises RequestError that names `param` and the first id which is none."""
    ids = tuple(ids)
    # A prompt may have very many: the loop runs only where there is something to report.
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size):
        return ids
    bad = next(token for token in ids if type(token) is not int or not 0 <= token < vocab_size)
    raise RequestError(f"{param}: token id {bad!r} is not an integer in 0 .. {vocab_size - 1}", param=param)


def check_defaults(defaults: SamplingDefaults) -> None:
    """Raises CheckpointError where no request could be served with them."""
    neutral = GenerationOptions()
    try:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _number(neutral, defaults, name, 0.0)
        _top_k(neutral, defaults)
        _whole(1 if defaults.max_new_tokens is None else defaults.max_new_tokens, "max_new_tokens", 1, 1 << 31)
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error.message}", param=error.param) from None


def resolve_sampling(
    options: GenerationOptions,
    *,
    defaults: SamplingDefaults,
    tokenizer: Tokenizer,
    prompt_tokens: int,
    prompt_param: str,
    max_model_len: int,
) -> SamplingParams:
    """Checks every option, and makes each default explicit: the client's value, else the checkpoint's, else neutral.

    `prompt_param` is what the client's prompt came in. Raises RequestError that names the option, ContextLengthError
    where prompt and output do not fit.
    """
    _check_choices_and_stops(options)
    size = count_of_ids(tokenizer)
    temperature = _number(options, defaults, "temperature", 1.0)
    room = _room(prompt_tokens, prompt_param, max_model_len, needed=0 if options.max_tokens == 0 else 1)
    max_tokens = _max_tokens(options, defaults, prompt_tokens, room)
    stop_token_ids = check_token_ids(options.stop_token_ids, size, "stop_token_ids")
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _too_many("stop_token_ids", len(stop_token_ids), MAX_STOP_TOKEN_IDS)
    sampling = SamplingParams(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=_top_k(options, defaults),
        top_p=_number(options, defaults, "top_p", 1.0),
        min_p=_number(options, defaults, "min_p", 0.0),
        presence_penalty=_number(options, defaults, "presence_penalty", 0.0),
        frequency_penalty=_number(options, defaults, "frequency_penalty", 0.0),
        repetition_penalty=_number(options, defaults, "repetition_penalty", 1.0),
        logit_bias=_logit_bias(options, size),
        allowed_token_ids=_allowed_token_ids(options, size),
        bad_words=_bad_words(options, tokenizer),
        seed=_seed(options),
        max_tokens=max_tokens,
        min_tokens=_whole(options.min_tokens or 0, "min_tokens", 0, max_tokens),
        eos_token_ids=() if options.ignore_eos else tokenizer.eos_token_ids,
        stop_token_ids=tuple(dict.fromkeys(stop_token_ids)),
        logprobs=_logprobs(options.logprobs, "logprobs"),
        prompt_logprobs=_logprobs(options.prompt_logprobs, "prompt_logprobs"),
    )
    _check_something_is_left(sampling)
    return sampling


def _check_choices_and_stops(options: GenerationOptions) -> None:
    _whole(options.n, "n", 1, MAX_CHOICES)
    if len(options.stop) > MAX_STOP_STRINGS:
        raise _too_many("stop", len(options.stop), MAX_STOP_STRINGS)
    for stop in options.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise RequestError(
                f"stop: each string must have 1 to {MAX_STOP_CHARS} characters, not {len(stop)}", param="stop"
            )
        check_text(stop, "stop")


def _number(options: GenerationOptions, defaults: SamplingDefaults, name: str, neutral: float) -> float:
    value = getattr(options, name)
    if value is None:
        value = getattr(defaults, name, None)
    if value is None:
        return neutral
    low, high = _RANGES[name]
    if not math.isfinite(value) or not low <= value <= high or (name == "top_p" and value == 0):
        above = "above 0 and at most 1" if name == "top_p" else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be {above}, not {value}", param=name)
    return float(value)


def _whole(value: int, name: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, not {value}", param=name)
    return value


def _too_many(name: str, count: int, most: int) -> RequestError:
    return RequestError(f"{name} may have at most {most} entries, not {count}", param=name)


def _top_k(options: GenerationOptions, defaults: SamplingDefaults) -> int:
    value = options.top_k if options.top_k is not None else defaults.top_k
    if value is None or value == -1:
        return 0
    if not 0 <= value < 1 << 31:
        raise RequestError(f"top_k must be at least 1, or 0 or -1 for all tokens, not {value}", param="top_k")
    return value


def _room(prompt: int, param: str, window: int, needed: int) -> int:
    """Tokens that are left for the output."""
    if prompt + needed > window:
        raise ContextLengthError(
            f"{param} comes to {prompt} tokens, but the model's window is {window} tokens"
            + (", and at least one must be left for the output" if needed else ""),
            param=param,
        )
    return window - prompt


def _max_tokens(options: GenerationOptions, defaults: SamplingDefaults, prompt: int, room: int) -> int:
    if options.max_tokens is None:
        return min(room, options.default_max_tokens or defaults.max_new_tokens or room)
    if options.max_tokens < 0:
        raise RequestError(f"max_tokens must be at least 0, not {options.max_tokens}", param="max_tokens")
    if options.max_tokens > room:
        raise ContextLengthError(
            f"the prompt has {prompt} tokens and max_tokens is {options.max_tokens}, together "
            f"{prompt + options.max_tokens}, but the model's window is {prompt + room} tokens: max_tokens may be at "
            f"most {room}",
            param="max_tokens",
        )
    return options.max_tokens


def _logit_bias(options: GenerationOptions, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(options.logit_bias) > MAX_LOGIT_BIAS:
        raise _too_many("logit_bias", len(options.logit_bias), MAX_LOGIT_BIAS)
    check_token_ids(options.logit_bias, vocab_size, "logit_bias")
    for token_id, bias in options.logit_bias.items():
        if not math.isfinite(bias) or not -100 <= bias <= 100:
            raise RequestError(
                f"logit_bias must be between -100 and 100, not {bias} for token id {token_id}", param="logit_bias"
            )
    return tuple((token_id, float(bias)) for token_id, bias in options.logit_bias.items())


def _allowed_token_ids(options: GenerationOptions, vocab_size: int) -> tuple[int, ...]:
    if options.allowed_token_ids is None:
        return ()
    if not options.allowed_token_ids:
        raise RequestError("allowed_token_ids must not be empty: no token could be sampled", param="allowed_token_ids")
    return tuple(sorted(set(check_token_ids(options.allowed_token_ids, vocab_size, "allowed_token_ids"))))


def _bad_words(options: GenerationOptions, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word, as at the start of a text and, where that is another one of the same length,
    as after a space (vLLM's rule)."""
    found: list[tuple[int, ...]] = []
    if len(options.bad_words) > MAX_BAD_WORDS:
        raise _too_many("bad_words", len(options.bad_words), MAX_BAD_WORDS)
    for word in options.bad_words:
        bare = word.lstrip()
        if not bare or len(bare) > MAX_BAD_WORD_CHARS:
            raise RequestError(
                f"bad_words: each must have 1 to {MAX_BAD_WORD_CHARS} characters beside leading space",
                param="bad_words",
            )
        check_text(bare, "bad_words")
        plain = tuple(tokenizer.encode(bare, add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + bare, add_special_tokens=False))
        if not plain:
            raise RequestError(
                f"bad_words: {word[:40]!r} has no tokens with this model, so it cannot be banned", param="bad_words"
            )
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
        if len(plain) > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"bad_words: {word[:40]!r} is {len(plain)} tokens long; at most {MAX_BAD_WORD_TOKENS} are supported",
                param="bad_words",
            )
    if len(found) > MAX_BAD_WORDS:
        raise RequestError(
            f"bad_words: these are {len(found)} token sequences (a word counts twice where it is another one after a "
            f"space); at most {MAX_BAD_WORDS} are supported",
            param="bad_words",
        )
    for banned in found:
        check_encoded(banned, tokenizer, "bad_words")
    return tuple(dict.fromkeys(found))


def _check_something_is_left(sampling: SamplingParams) -> None:
    """Bans that contradict allowed_token_ids from the first draw on. Those that depend on what is drawn show later."""
    allowed = set(sampling.allowed_token_ids)
    bans = {
        "bad_words": {word[0] for word in sampling.bad_words if len(word) == 1},
        "min_tokens (which holds end and stop tokens back)": {
            *(sampling.eos_token_ids + sampling.stop_token_ids if sampling.min_tokens else ())
        },
    }
    if allowed and not allowed.difference(*bans.values()):
        names = " and ".join(name for name, banned in bans.items() if allowed & banned)
        raise RequestError(f"nothing is left to draw: {names} ban all of allowed_token_ids", param="allowed_token_ids")


def _seed(options: GenerationOptions) -> int:
    if options.seed is None:
        return secrets.randbelow(MAX_SEED + 1)
    if not -MAX_SEED - 1 <= options.seed <= MAX_SEED:
        raise RequestError(f"seed must fit a signed 64-bit integer, not {options.seed}", param="seed")
    return options.seed & MAX_SEED


def _logprobs(value: int | None, name: str) -> int | None:
    return None if value is None else _whole(value, name, 0, MAX_LOGPROBS)
