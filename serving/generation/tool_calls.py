"""Tool calls in a model's text, in the Hermes form: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
TOOL_CALL_TAGS = (_OPEN, _CLOSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    index: int  # of the calls of this answer
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    parts: tuple[str | ToolCall, ...] = field(default=(), compare=False)  # both, in the order in which they stand

    @classmethod
    def of(cls, parts: Sequence[str | ToolCall]) -> "ParsedText":
        content = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(part for part in parts if isinstance(part, ToolCall))
        return cls(content=content, tool_calls=calls, parts=tuple(parts))


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class HermesToolParser:
    """Takes the answer in chunks, gives content and calls. How the answer is cut into chunks changes nothing.

    A call comes whole, once its closing tag is there: what looks like a call may turn out not to be one, and then its
    text, tags included, is content. White space next to a call is no content. An answer that ends inside a complete
    call (the closing tag left out) still makes the call.
    """

    def __init__(self, new_id: Callable[[], str] = _call_id) -> None:
        self._new_id = new_id
        self._text = ""  # not yet given out; inside a call it begins with the opening tag
        self._inside = False
        self._searched = 0  # of `_text`, where no closing tag begins
        self.calls_made = 0

    def feed(self, chunk: str) -> ParsedText:
        self._text += chunk
        parts: list[str | ToolCall] = []
        while self._advance(parts):
            pass
        return ParsedText.of(parts)

    def finish(self) -> ParsedText:
        """What the end of the answer makes certain."""
        text, self._text = self._text, ""
        if self._inside and (call := self._call(text.removeprefix(_OPEN))):
            return ParsedText.of([call])
        if not text or (self.calls_made and not text.strip()):
            return ParsedText()
        return ParsedText.of([text])

    def _advance(self, parts: list[str | ToolCall]) -> bool:
        """Takes one step through the text; False where more text is needed."""
        if self._inside:
            return self._close(parts)
        at = self._text.find(_OPEN)
        keep = _open_suffix(self._text) if at < 0 else len(self._text) - at
        before, rest = self._text[: len(self._text) - keep], self._text[len(self._text) - keep :]
        # White space waits: a call may follow it.
        shown = before.rstrip()
        if shown:
            parts.append(shown)
        self._text = before[len(shown) :] + rest
        self._inside = at >= 0
        self._searched = 0
        return self._inside

    def _close(self, parts: list[str | ToolCall]) -> bool:
        at = self._text.find(_CLOSE, self._searched)
        if at < 0:
            self._searched = max(0, len(self._text) - len(_CLOSE))
            return False
        end = at + len(_CLOSE)
        body = self._text[:at].lstrip().removeprefix(_OPEN)
        if call := self._call(body):
            parts.append(call)
        elif _ends_inside_string(body):
            self._searched = end  # the tag is part of an argument
            return True
        else:
            parts.append(self._text[:end])
        self._text = self._text[end:]
        self._inside = False
        return True

    def _call(self, body: str) -> ToolCall | None:
        try:
            parsed: Any = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(parsed, dict) or not isinstance(parsed.get("name"), str):
            return None
        arguments = parsed.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        self.calls_made += 1
        return ToolCall(
            index=self.calls_made - 1,
            id=self._new_id(),
            name=parsed["name"],
            arguments=json.dumps(arguments, ensure_ascii=False),
        )


def parse_tool_calls(text: str, new_id: Callable[[], str] = _call_id) -> ParsedText:
    """The content and the calls of a whole answer."""
    parser = HermesToolParser(new_id)
    return ParsedText.of([*parser.feed(text).parts, *parser.finish().parts])


def _open_suffix(text: str) -> int:
    """The length of the longest suffix that an opening tag begins with."""
    return next((size for size in range(min(len(_OPEN) - 1, len(text)), 0, -1) if text.endswith(_OPEN[:size])), 0)


def _ends_inside_string(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False
