"""What a dialogue is made of: exchanges, gathered into an episode of one skill, and episodes into a conversation."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from scripts.demo.draw import Draw, is_held_out, normalized

_ALWAYS_TRAINED_WORDS = 5


@dataclass(frozen=True)
class ToolCall:
    """One call and what the tool returned."""

    name: str
    arguments: dict[str, object]
    result: str


@dataclass(frozen=True)
class Exchange:
    """A user's text and the answer. `brief` is the answer under a system prompt that asks for brevity; `key` is what
    the held-out split hashes (by default the wording); `fixed` answers are left alone by styles (JSON, for one)."""

    user: str
    answer: str
    brief: str | None = None
    key: str | None = None
    calls: tuple[ToolCall, ...] = ()
    fixed: bool = False

    def held_out(self) -> bool:
        if self.key is not None:
            return is_held_out(self.key)
        wording = normalized(self.user)
        return len(wording.split()) > _ALWAYS_TRAINED_WORDS and is_held_out(wording)


@dataclass(frozen=True)
class Episode:
    """Exchanges of one skill; the last is the one that an evaluation scores."""

    skill: str
    exchanges: tuple[Exchange, ...]
    system: str | None = None
    tools: tuple[dict[str, object], ...] = ()


Maker = Callable[[Draw], Episode]
Message = dict[str, object]


@dataclass
class Conversation:
    """Messages in the OpenAI form, and the tools offered."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, object]] = field(default_factory=list)

    def system(self, text: str) -> None:
        self.messages.append({"role": "system", "content": text})

    def add(self, exchange: Exchange, answer: str | None = None) -> None:
        self.messages.append({"role": "user", "content": exchange.user})
        for call in exchange.calls:
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            entry = {"type": "function", "function": function}
            self.messages.append({"role": "assistant", "content": None, "tool_calls": [entry]})
            self.messages.append({"role": "tool", "content": call.result})
        self.messages.append({"role": "assistant", "content": exchange.answer if answer is None else answer})
