"""What goes into the generator and what comes out: text, and the words that clients use for sampling."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.engine.request import FinishReason, GrammarSpec, Priority, SamplingParams
from serving.generation.answers.answer_form import PLAIN, AnswerForm
from serving.generation.call_grammar import CallRules
from serving.settings.reasoning_switch import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Sampling in the client's terms. None is unset: the checkpoint's generation_config.json decides, then neutrality.

    Bounds and their errors: `validation.py`.
    """

    n: int = 1  # choices
    temperature: float | None = None  # 0 is greedy
    top_k: int | None = None  # 0 and -1 are off
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int | None = None  # until then nothing ends a text: no EOS, no stop token, no stop string
    max_tokens: int | None = None  # refused where the window is smaller; 0: the prompt is only scored
    default_max_tokens: int | None = None  # where max_tokens is unset: so many, or what is left; None fills the window
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None  # None draws one
    logprobs: int | None = None  # None: off; 0: of the sampled token; k: and of the k most likely
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One generation: of `prompt` (text or token ids), or of `messages` through the chat format; exactly one is set."""

    request_id: str
    prompt: str | tuple[int, ...] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: Effort | None = None  # None: as the chat template has it by itself
    add_special_tokens: bool | None = None  # None: yes for a prompt, no for messages (the template writes its own)
    options: GenerationOptions = field(default_factory=GenerationOptions)
    grammar: GrammarSpec | None = None  # of the text; where there are `calls`, they say it all
    calls: CallRules | None = None
    cache_salt: str = ""
    model: str | None = None  # by the client's name for it; None: the served one without an adapter
    adapter: str = ""  # that `model` means, once somebody has looked it up
    may_fall_back: bool = True  # another model may answer, and say so, where the engine of this one is away or full
    priority: Priority | None = None  # None: what the gateway gives, else standard
    tenant: str = ""
    user: str = ""  # of the tenant's, in its own words: for the event log, and records for a person
    tenant_weight: float = 1.0
    deadline_seconds: float | None = None  # from the arrival of each choice at the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A request that passed every check: `sampling` has every default made explicit (its seed is choice 0's)."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    prompt_text: str | None  # the prompt or the rendered chat; None where the client sent token ids
    sampling: SamplingParams
    n: int
    stop: tuple[str, ...]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    kept_special_tokens: frozenset[int]  # shown even so: the tags of the answer's parts
    cache_salt: str
    answer: AnswerForm = PLAIN
    adapter: str = ""
    priority: Priority | None = None
    tenant: str = ""
    tenant_weight: float = 1.0
    deadline_seconds: float | None = None
    grammar: GrammarSpec | None = None
    max_tokens_stated: bool = True  # by the client; else sampling.max_tokens is what a default or the window left

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The request id of each choice at the engine."""
        return (self.request_id,) if self.n == 1 else tuple(f"{self.request_id}-{index}" for index in range(self.n))

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def most_tokens(self) -> int:
        """The tokens that this request may cost at most: the prompt once, and every choice's output."""
        return len(self.prompt_token_ids) + self.n * self.sampling.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """A token as a client sees it. `token` is `token_bytes` with U+FFFD where they are not whole characters."""

    token_id: int
    token: str
    token_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLogprobs:
    """Log-probabilities at one position, of the raw logits; `top` has the most likely first."""

    token: TokenText
    logprob: float
    rank: int  # 1 is the most likely
    top: tuple[tuple[TokenText, float], ...] = ()
    start: int = 0  # of an output's token: where its text begins, in characters of the choice's


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one choice so far. `completion_tokens` counts every token generated up to the end of the stream, also
    those whose text a stop string took away."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    guessed_tokens: int = 0  # by speculation
    accepted_tokens: int = 0  # of those, how many were right and are among the completion's


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What became visible of one choice. The last one of a choice has the finish_reason.

    `token_ids` and `logprobs` are those of the tokens whose text ends within the text given so far, so that neither
    tells of text that is held back or cut off.
    """

    index: int  # of the choice
    usage: Usage
    answer: AnswerForm = PLAIN  # how the text is to be read
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprobs, ...] = ()  # one per token id where asked for
    # Of choice 0's first delta, where asked for: one per prompt token, None for the first.
    prompt_logprobs: tuple[TextLogprobs | None, ...] | None = None
    weights: str | None = None  # the version of those that drew it, where the engine knows
    finish_reason: FinishReason | None = None
    flags: tuple[tuple[str, float], ...] = ()  # with the finish_reason: what moderation noted, category and score
    stop_reason: str | int | None = None  # the stop string, or the entry of stop_token_ids; None for an EOS
