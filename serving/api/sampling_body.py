"""The fields that chat and text completions share, and the parameters of other servers that both refuse."""

from typing import Annotated, Any

import msgspec

from serving.api.output_format import Choices, ResponseFormat, StructuredOutputs, asked_format
from serving.api.typed_body import Body, Refusal
from serving.engine.request import Priority
from serving.errors import RequestError, UnsupportedError
from serving.generation.request import GenerationOptions

MAX_SALT_CHARS = 1024
MAX_TIMEOUT_SECONDS = 86400

REFUSED_SAMPLING = {
    "best_of": Refusal("every choice is returned, so use n", (1,)),
    "guided_decoding_backend": Refusal("there is one, llguidance", ("auto", "guidance", "llguidance")),
    "guided_whitespace_pattern": Refusal("white space between the parts of a JSON text is the server's choice"),
    "kv_transfer_params": Refusal("pages are moved by the server alone"),
    "length_penalty": Refusal("there is no beam search", (1,)),
    "logits_processors": Refusal("no client code runs in the server", ([],)),
    "lora_request": Refusal("adapters are chosen by model"),
    "prompt_embeds": Refusal("prompts are text or token ids"),
    "request_id": Refusal("the server makes the id; send X-Request-Id to have your own echoed"),
    "return_tokens_as_token_ids": Refusal("use return_token_ids", (False,)),
    "service_tier": Refusal("there is one tier", ("auto", "default")),
    "spaces_between_special_tokens": Refusal("special tokens are joined as they are", (True,)),
    "store": Refusal("nothing is stored", (False,)),
    "truncate_prompt_tokens": Refusal("a prompt that is too long is refused, never cut"),
    "use_beam_search": Refusal("there is no beam search", (False,)),
    "vllm_xargs": Refusal("there are no extensions"),
}


SCHEDULING_WORDS = {"priority": tuple(priority.value for priority in Priority)}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None  # one more chunk at the end, without choices
    continuous_usage_stats: bool | None = None  # usage so far in every chunk
    include_obfuscation: bool | None = None


class SamplingBody(Body, kw_only=True):
    """Bounds are the generator's (`generation/validation.py`), so that every protocol has the same.

    `user`, `metadata`, `safety_identifier` and `prompt_cache_key` are labels: they are accepted and change nothing. The
    event log has a hash of the user's.
    (The prefix cache needs no key; `cache_salt` keeps one client's prefixes from another's.)
    """

    model: str | None = None  # None: the one that is served
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    fallback: bool | None = None  # false: no other model may answer in place of this one
    durable: bool | None = None  # the stream goes on without its client, and can be read again: /v1/streams

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None

    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None

    priority: Priority | None = None  # None: the key's
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_SECONDS)] | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def user_id(self) -> str:
        return self.safety_identifier or self.user or ""

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def options(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> GenerationOptions:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return GenerationOptions(
            n=1 if self.n is None else self.n,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias or {},
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words or ()),
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            ignore_eos=bool(self.ignore_eos),
            stop=tuple(stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            seed=self.seed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def check_together(self) -> None:
        """What a type cannot say. Raises RequestError."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options", code="invalid_value")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise UnsupportedError(
                "stream_options.include_obfuscation is not supported: chunks are not padded; send false",
                param="stream_options.include_obfuscation",
            )
        if self.durable and not self.stream:
            raise RequestError("durable needs stream to be true", param="durable", code="invalid_value")
        if self.prompt_logprobs is not None and self.stream:
            raise UnsupportedError(
                "prompt_logprobs is not supported with stream: ask for it without", param="prompt_logprobs"
            )
        asked_format(self)
