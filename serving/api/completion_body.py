"""What POST /v1/completions reads."""

from typing import Annotated, ClassVar, cast

import msgspec

from serving.api.output_format import FORMAT_WORDS
from serving.api.sampling_body import REFUSED_SAMPLING, SCHEDULING_WORDS, SamplingBody
from serving.api.strict_json import json_type
from serving.api.typed_body import Refusal
from serving.errors import RequestError, UnsupportedError

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16  # OpenAI's, where the client sets none

Prompt = str | tuple[int, ...]


class CompletionBody(SamplingBody, kw_only=True):
    refused: ClassVar = {
        **REFUSED_SAMPLING,
        "suffix": Refusal("text is not filled into a gap", ("",)),
        "messages": Refusal("messages go to /v1/chat/completions"),
        "max_completion_tokens": Refusal("here it is max_tokens"),
        "tools": Refusal("tools go to /v1/chat/completions"),
    }

    words: ClassVar = FORMAT_WORDS | SCHEDULING_WORDS

    prompt: str | Annotated[list[int | str | list[int]], msgspec.Meta(min_length=1)]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None

    def check_together(self) -> None:
        super().check_together()
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise UnsupportedError(
                "best_of is not supported: every choice is returned, so use n; leave it out, or send what n is",
                param="best_of",
            )
        if self.echo and self.logprobs is not None and self.stream:
            raise UnsupportedError(
                "echo with logprobs is not supported with stream: ask for it without", param="logprobs"
            )
        if self.max_tokens == 0:
            self._check_scoring()

    def _check_scoring(self) -> None:
        """The prompt is read and nothing is generated."""
        if not self.echo and self.prompt_logprobs is None:
            raise RequestError(
                "max_tokens may be 0 only with echo or prompt_logprobs: there would be nothing to answer",
                param="max_tokens",
                code="invalid_value",
            )
        if self.stream:
            raise UnsupportedError("max_tokens 0 is not supported with stream: ask for it without", param="max_tokens")

    @property
    def prompts(self) -> list[Prompt]:
        """Each prompt as text or token ids. Raises RequestError where kinds are mixed."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kind = type(self.prompt[0])
        if len(set(map(type, self.prompt))) > 1:  # token ids may be very many: no loop over them unless for an error
            i, item = next((i, item) for i, item in enumerate(self.prompt) if type(item) is not kind)
            raise RequestError(
                f"prompt[{i}] is {json_type(item)} where prompt[0] is {json_type(self.prompt[0])}; a list of "
                "prompts is all strings or all lists of token ids, and one prompt's token ids are all integers",
                param=f"prompt[{i}]",
                code="invalid_value",
            )
        if kind is int:
            return [cast(tuple[int, ...], tuple(self.prompt))]
        if len(self.prompt) > MAX_PROMPTS:
            raise RequestError(
                f"prompt may be at most {MAX_PROMPTS} prompts, not {len(self.prompt)}",
                param="prompt",
                code="invalid_value",
            )
        return [tuple(item) if isinstance(item, list) else str(item) for item in self.prompt]
