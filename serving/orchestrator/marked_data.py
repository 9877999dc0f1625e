"""Text that others wrote, marked as data and not as instructions, in a way that the text itself cannot undo."""

import re
from typing import Literal, Protocol
from xml.sax.saxutils import quoteattr

Mark = Literal["document", "note", "summary", "result"]
# Those of this file, and those that templates write around calls and their results.
_TAGS = ("document", "note", "summary", "result", "tool_call", "tool_response", "tools")
_MARKS = re.compile(rf"<(?=/?(?:{'|'.join(_TAGS)})\b)", re.IGNORECASE)


class Source(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


def marked(source: Source, mark: Mark) -> str:
    """The text between tags that name its source; a tag of such a kind within it is written as text."""
    title = f" title={quoteattr(source.title)}" if source.title else ""
    return f"<{mark} id={quoteattr(source.id)}{title}>\n{_MARKS.sub('&lt;', source.text)}\n</{mark}>"
