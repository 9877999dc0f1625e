"""Counts tokens as the served model has them."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from serving.generation.generator import ENCODE_IN_THREAD_ABOVE, Generator
from serving.generation.request import TextRequest
from serving.orchestrator.turns import Message
from serving.settings.reasoning_switch import Effort


class Counter(Protocol):
    """The served model's own way of counting."""

    def text(self, text: str) -> int:
        """Tokens of a text by itself."""
        ...

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> Awaitable[int]:
        """Tokens of the rendered prompt, exactly."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounter:
    """By the generator's own template and tokenizer, so that what is counted is what will be computed."""

    generator: Generator
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template, the client's own
    reasoning_effort: Effort | None = None

    def text(self, text: str) -> int:
        return len(self.generator.tokenizer.encode(text, add_special_tokens=False))

    async def long_text(self, text: str) -> int:
        """As `text`, without holding up others."""
        if len(text) <= ENCODE_IN_THREAD_ABOVE:
            return self.text(text)
        return await asyncio.to_thread(self.text, text)

    async def prompt(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> int:
        """Of a prompt with more characters than the window could hold, a number above the window. Raises what
        `Generator.render_chat` raises."""
        request = TextRequest(
            request_id="",
            messages=messages,
            tools=tools,
            chat_template_kwargs=self.variables,
            reasoning_effort=self.reasoning_effort,
        )
        text = await self.generator.render_chat(request)
        most = self.generator.tokenizer.most_chars_per_token
        if len(text) > self.generator.max_model_len * most:
            return len(text) // most + 1
        return await self.long_text(text)


class CountedOnce:
    """A counter over another, for the time of one fitting, which asks for the same texts and prompts again."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._texts: dict[str, int] = {}
        self._prompts: dict[bytes, int] = {}

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = self._counter.text(text)
        return self._texts[text]

    async def prompt(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> int:
        key = msgspec.json.encode((messages, tools))
        if key not in self._prompts:
            self._prompts[key] = await self._counter.prompt(messages, tools)
        return self._prompts[key]
