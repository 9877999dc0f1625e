"""gpt-oss' form of an answer: messages on channels, each with a header.

    <|channel|>analysis<|message|>...<|end|>                                              reasoning
    <|start|>assistant<|channel|>final<|message|>...<|return|>                            content
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>    a call

What is said on the commentary channel to nobody is content: models announce their calls there.
"""

import json
import re
from collections.abc import Callable

from serving.generation.answers.call_bodies import json_of
from serving.generation.answers.parts import Part, Reasoning, ToolCall, begun_at_end
from serving.generation.encodable_text import encodable

HARMONY = "harmony"
HARMONY_MARK = "<|channel|>"  # in the chat template
HARMONY_TAGS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
FINAL = "<|channel|>final<|message|>"  # content follows
NEXT_MESSAGE = "<|start|>assistant"  # the header of a second message follows: of the first, its prompt ends with this

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")  # the last two where an end was left out
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."


class HarmonyParser:
    """Takes an answer in chunks, gives its parts. How it is cut into chunks changes nothing."""

    def __init__(self, *, with_tools: bool, new_id: Callable[[], str]) -> None:
        self._with_tools = with_tools
        self._new_id = new_id
        self._text = ""  # not yet given out
        self._in_header = True
        self._is_start = True
        self._kind: type[Reasoning] | type[str] = str  # of the message that is read
        self._called = ""  # the function that it calls
        self.calls_made = 0

    def feed(self, chunk: str) -> list[Part]:
        self._text += chunk
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self, *, cut: bool = False) -> list[Part]:
        """`cut`: the end is not the model's own."""
        text, self._text = self._text, ""
        if self._in_header:
            return []  # a header that nothing followed
        if self._called and not (cut and not text.strip()):
            return [self._call(text)]
        return self._said(text)

    def _advance(self, parts: list[Part]) -> bool:
        return self._read_header() if self._in_header else self._read_message(parts)

    def _read_header(self) -> bool:
        if self._is_start and not self._starts_with_header():
            if not self._text.strip() or any(tag.startswith(self._text.lstrip()) for tag in HARMONY_TAGS):
                return False
            self._is_start = self._in_header = False  # an answer that goes on with a message begun in its prompt
            return True
        at = self._text.find(_MESSAGE)
        if at < 0:
            return False
        header, self._text = self._text[:at], self._text[at + len(_MESSAGE) :]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        to = recipient[1] if recipient else ""
        self._called = to.removeprefix(_FUNCTIONS) if to.startswith(_FUNCTIONS) and self._with_tools else ""
        hidden = (channel is not None and channel[1] == "analysis") or (bool(to) and not to.startswith(_FUNCTIONS))
        self._kind = Reasoning if hidden else str
        self._in_header = self._is_start = False
        return True

    def _starts_with_header(self) -> bool:
        begun = self._text.lstrip()
        return begun.startswith((*HARMONY_TAGS, "to="))

    def _read_message(self, parts: list[Part]) -> bool:
        ends = [(at, tag) for tag in _ENDS if (at := self._text.find(tag)) >= 0]
        if not ends:
            keep = max(begun_at_end(self._text, tag) for tag in _ENDS)
            if not self._called:
                parts += self._said(self._text[: len(self._text) - keep])
                self._text = self._text[len(self._text) - keep :]
            return False
        at, tag = min(ends)
        said = self._text[:at]
        parts += [self._call(said)] if self._called else self._said(said)
        self._text = self._text[at:] if tag in ("<|start|>", "<|channel|>") else self._text[at + len(tag) :]
        self._in_header = True
        return True

    def _said(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Reasoning(text) if self._kind is Reasoning else text]

    def _call(self, body: str) -> Part:
        """What is no JSON object is content."""
        name, self._called = self._called, ""
        arguments = json_of(body or "{}")
        if not isinstance(arguments, dict):
            return body
        self.calls_made += 1
        text = encodable(json.dumps(arguments, ensure_ascii=False))
        return ToolCall(index=self.calls_made - 1, id=self._new_id(), name=name, arguments=text)
