"""What POST /v1/prefixes reads."""

from typing import Annotated, Any, ClassVar

import msgspec

from serving.api.chat_body import CHAT_WORDS, Messages, Tools, check_template_variables
from serving.api.sampling_body import MAX_SALT_CHARS
from serving.api.tokenize_body import TokenizeBody
from serving.api.typed_body import Body
from serving.errors import RequestError
from serving.settings.reasoning_switch import Effort

DEFAULT_TTL = 3600  # seconds


class PrefixBody(Body, kw_only=True):
    """A prompt, or messages and tools as a chat completion has them; exactly one of the two."""

    words: ClassVar = CHAT_WORDS

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    ttl: Annotated[int, msgspec.Meta(ge=1)] | None = None  # seconds

    def check_together(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", param="prompt", code="missing_required_parameter")
        if self.prompt is not None:
            for name in ("tools", "chat_template_kwargs", "reasoning_effort"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} needs messages", param=name, code="invalid_value")
        check_template_variables(self.chat_template_kwargs)

    def to_encode(self) -> TokenizeBody:
        """What the beginning of such a request is encoded from: nobody is to answer yet."""
        return TokenizeBody(
            prompt=self.prompt,
            messages=self.messages,
            tools=self.tools,
            add_generation_prompt=None if self.messages is None else False,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning_effort,
        )
