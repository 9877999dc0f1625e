"""Tool calls in a model's text, told apart from content."""

import json
import secrets
from collections.abc import Callable

from serving.generation.answers.call_bodies import Schemas
from serving.generation.answers.call_forms import CallForm
from serving.generation.answers.parts import Part, ToolCall, begun_at_end
from serving.generation.encodable_text import encodable

_TELLING = 2  # characters of a closing tag: the first alone may begin another tag


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class CallParser:
    """Takes content in chunks, gives content and calls. How it is cut into chunks changes nothing.

    Calls come whole, once they are closed: what looks like a call may turn out not to be one, and then its text, tags
    included, is content. White space next to a call is no content. An answer that ends inside a complete call (the
    closing tag left out, or begun) still makes the call; so does one that is cut off there, if that it is complete can
    be seen.
    """

    def __init__(self, form: CallForm, schemas: Schemas, new_id: Callable[[], str] = call_id) -> None:
        self._form = form
        self._schemas = schemas
        self._new_id = new_id
        self._text = ""  # not yet given out; inside of calls it begins with what opened them
        self._opened = ""  # that; meaningful inside only
        self._inside = False
        self._is_start = True  # nothing but white space has come yet
        self._searched = 0  # of `_text`, where no closing tag begins
        self.calls_made = 0

    def feed(self, chunk: str) -> list[Part]:
        self._text += chunk
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self, *, cut: bool = False) -> list[Part]:
        """What the end of the answer makes certain. `cut`: it is not the model's own."""
        text, self._text = self._text, ""
        is_start, self._is_start = self._is_start, False
        body = text.lstrip().removeprefix(self._opened)
        may_be = self._inside or (is_start and self._begins_bare(text) is not False)
        closing = begun_at_end(body, self._form.closing)
        if closing < _TELLING:
            closing = 0
        is_whole = bool(closing) or not cut or self._form.is_whole(body)
        if may_be and is_whole and (calls := self._calls(body[: len(body) - closing])):
            return [*calls]
        if not text or (self.calls_made and not text.strip()):
            return []
        return [text]

    def _advance(self, parts: list[Part]) -> bool:
        """Takes one step through the text; False where more text is needed."""
        if self._inside:
            return self._close(parts)
        if self._is_start:
            begins = self._begins_bare(self._text)
            if begins is None:
                return False
            self._is_start = False
            if begins:
                self._inside, self._opened, self._searched = True, "", 0
                return True
        opening = self._form.opening
        at = self._text.find(opening) if opening else -1
        keep = begun_at_end(self._text, opening) if at < 0 else len(self._text) - at
        before, rest = self._text[: len(self._text) - keep], self._text[len(self._text) - keep :]
        # White space waits: a call may follow it.
        shown = before.rstrip()
        if shown:
            parts.append(shown)
        self._text = before[len(shown) :] + rest
        if at < 0:
            return False
        self._inside, self._opened, self._searched = True, opening, 0
        return True

    def _begins_bare(self, text: str) -> bool | None:
        """Whether the answer begins with a call that no tag opens; None where that is not known yet."""
        form, begun = self._form, text.lstrip()
        if not (form.bare or form.bare_name):
            return False
        if not begun:
            return None
        if form.bare:
            return begun.startswith(form.bare)
        line, newline, rest = begun.partition("\n")
        if newline:
            rest = rest.lstrip()
            return line.strip() in self._schemas and (rest.startswith("{") if rest else None)
        return None if any(name.startswith(line.strip()) for name in self._schemas) else False

    def _close(self, parts: list[Part]) -> bool:
        closing = self._form.closing
        if not closing or not self._opened:
            return False  # the end of the answer closes it
        at = self._text.find(closing, self._searched)
        if at < 0:
            self._searched = max(0, len(self._text) - len(closing))
            return False
        end = at + len(closing)
        body = self._text[:at].lstrip().removeprefix(self._opened)
        if calls := self._calls(body):
            parts += calls
        elif _ends_inside_string(body):
            self._searched = end  # the tag is part of an argument
            return True
        else:
            parts.append(self._text[:end])
        self._text = self._text[end:]
        self._inside = False
        return True

    def _calls(self, body: str) -> list[ToolCall]:
        made: list[ToolCall] = []
        for name, arguments in self._form.read(body.removesuffix(self._form.closing), self._schemas) or ():
            text = encodable(json.dumps(arguments, ensure_ascii=False))
            made.append(ToolCall(index=self.calls_made, id=self._new_id(), name=encodable(name), arguments=text))
            self.calls_made += 1
        return made


def _ends_inside_string(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False
