"""What POST /tokenize and POST /detokenize read, in vLLM's shapes."""

from typing import Any, ClassVar

from serving.api.chat_body import (
    CHAT_WORDS,
    REFUSED_TEMPLATE,
    Messages,
    Tools,
    check_template_variables,
)
from serving.api.typed_body import Body
from serving.errors import RequestError
from serving.settings.reasoning_switch import Effort

_OF_MESSAGES = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "reasoning_effort")


class TokenizeBody(Body, kw_only=True):
    """A prompt, or messages through the chat template; exactly one of them."""

    refused: ClassVar = REFUSED_TEMPLATE
    words: ClassVar = CHAT_WORDS

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    return_token_strs: bool | None = None

    def check_together(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", param="prompt", code="missing_required_parameter")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
                code="invalid_value",
            )
        check_template_variables(self.chat_template_kwargs)
        if self.messages is None:
            for name in _OF_MESSAGES:
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} needs messages", param=name, code="invalid_value")


class DetokenizeBody(Body, kw_only=True):
    model: str | None = None
    tokens: list[int]
