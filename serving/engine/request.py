"""What goes into an engine and what comes out: token ids, numbers, and nothing of text.

These dataclasses are also the messages between the API process and the engine process (see `remote.py`), so every field
is an integer, a float, a string, or a tuple of those.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_BAD_WORDS = 64
MAX_BAD_WORD_TOKENS = 8
MAX_STOP_TOKEN_IDS = 32
MAX_EOS_TOKEN_IDS = 16
MAX_SEED = 2**63 - 1
MAX_GRAMMAR_BYTES = 128 << 10
MAX_TENANT_CHARS = 256


class FinishReason(StrEnum):
    """Why a stream ended. Exactly one event of a stream carries one."""

    STOP = "stop"  # an end-of-sequence or stop token was sampled
    LENGTH = "length"  # max_tokens or the model's window was reached
    ABORT = "abort"  # the client left, or asked for it
    ERROR = "error"  # the engine failed on this request; `TokenEvent.error` says how
    DEADLINE = "timeout"  # its deadline passed, or could not be met
    CONTENT_FILTER = "content_filter"  # a policy cut it: said by the API process, never by an engine


class Pooling(StrEnum):
    """How the hidden states of a text become one vector."""

    LAST = "last"  # that of its last token
    MEAN = "mean"  # over all of its tokens


class Priority(StrEnum):
    """A request's class. Each goes before those below it; what keeps a lower one from starving: `policies/order.py`."""

    INTERACTIVE = "interactive"  # somebody watches the tokens come
    STANDARD = "standard"
    BATCH = "batch"  # fills what the others leave idle, and yields within a step


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Values are already validated and every default made explicit.

    The order is: raw logits -> logprobs reported -> penalties -> logit_bias -> banned and allowed tokens ->
    temperature -> min_p, top_k, top_p -> a Gumbel-max draw whose noise depends on (seed, position) alone.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    repetition_penalty: float = 1.0  # over prompt and output tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all are allowed
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences whose last token is banned after the others
    seed: int = 0  # always set: the generator draws one where the client gave none
    max_tokens: int = (
        16  # 0: the prompt is read, and scored where asked for; one event, without a token, ends the stream
    )
    min_tokens: int = 0  # until then neither eos_token_ids nor stop_token_ids can be sampled
    eos_token_ids: tuple[int, ...] = ()  # end the stream; emptied by ignore_eos before it gets here
    stop_token_ids: tuple[int, ...] = ()  # end the stream; the event names the one that did
    logprobs: int | None = None  # None: off; 0: the sampled token's; k: and the k most likely
    prompt_logprobs: int | None = None

    @property
    def is_greedy_plain(self) -> bool:
        """True where the token is the argmax of the raw logits, so the step needs no sampler state at all."""
        return self.temperature == 0.0 and not self.needs_row

    @property
    def needs_row(self) -> bool:
        """Whether draws depend on more than the logits and the numbers in the batch, so that a row must be set up."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or bool(self.logit_bias or self.allowed_token_ids or self.bad_words)
            or (self.min_tokens > 0 and bool(self.eos_token_ids or self.stop_token_ids))
        )


class GrammarKind(StrEnum):
    """How `GrammarSpec.text` is to be read."""

    JSON_SCHEMA = "json_schema"  # a JSON schema, as JSON
    REGEX = "regex"  # the whole output matches it
    CHOICE = "choice"  # a JSON array of strings: the output is one of them
    LARK = "lark"  # a grammar with a `start` rule, in llguidance's form of Lark
    EBNF = "ebnf"  # a grammar with a `root` rule, in llama.cpp's form of it (GBNF)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """What the output has to be. It binds the tokens after the first occurrence of `starts_after` in the output, which
    is how a model's reasoning stays free; until then only the tokens that end a text are banned."""

    kind: GrammarKind
    text: str
    starts_after: tuple[int, ...] = ()  # empty: from the first token on


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One stream. `output_token_ids` are tokens generated earlier, when a stream continues after a lost engine."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    output_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""  # separates prefix caches: pages are shared only between equal salts
    adapter: str = ""  # the name of the one beside the model's weights; "": none
    grammar: GrammarSpec | None = None
    priority: Priority = Priority.STANDARD
    tenant: str = ""  # who is served fairly beside others of the class
    tenant_weight: float = 1.0  # share of the class beside other tenants with work to do
    deadline_seconds: float | None = None  # from arrival at the engine to the last token; None: no deadline


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the raw logits (before penalties and temperature)."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """What one step did for one stream. The last event has a finish_reason, and may have no token."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token where logprobs were asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # with the first event only; positions 1.. of the prompt
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the entry of stop_token_ids that ended the stream; None for an EOS
    cached_tokens: int | None = None  # with the first event: prompt tokens whose pages were reused
    queue_seconds: float | None = None  # with the first event: arrival to first planned
    guessed_tokens: int = 0  # by speculation, in the step that this event is of
    accepted_tokens: int = 0  # of those, how many are among `token_ids`
    weights: str | None = None  # with the first event and the last one: the version of those that drew them
    error: str | None = None
    flags: tuple[tuple[str, float], ...] = ()  # with the last event: what moderation noted, category and score
    error_param: str | None = None  # the field of the request at fault; None where it is the engine's
