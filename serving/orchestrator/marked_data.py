"""Text that others wrote, marked as data and not as instructions, in a way that the text itself cannot undo."""

import re
from typing import Literal, Protocol
from xml.sax.saxutils import quoteattr

Mark = Literal["document", "note", "summary"]
_MARKS = re.compile(r"<(?=/?(?:document|note|summary)\b)", re.IGNORECASE)


class Source(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


def marked(source: Source, mark: Mark) -> str:
    """The text between tags that name its source; a tag of the same kind within it is written as text."""
    title = f" title={quoteattr(source.title)}" if source.title else ""
    return f"<{mark} id={quoteattr(source.id)}{title}>\n{_MARKS.sub('&lt;', source.text)}\n</{mark}>"
