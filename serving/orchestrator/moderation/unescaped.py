"""An answer as it reads once the escapes of its literals are undone, while it comes.

What calls a tool, and what has JSON for its form, reaches nobody as it is written: a program decodes it first. Undone
are the escapes of JSON and those of Python, in whose syntax some families write calls.
"""

import re
import unicodedata
from dataclasses import dataclass, field

from serving.generation.encodable_text import encodable

_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:(?P<pair>u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
    rf"|(?:u(?P<u>{_HEX}{{4}})|U(?P<U>{_HEX}{{8}})|x(?P<x>{_HEX}{{2}}))"
    r"|(?P<octal>[0-7]{1,3})|N\{(?P<name>[^{}\\]{1,100})\}|(?P<letter>[\"'\\/abfnrtv\n]))"
)
_BEGUN = re.compile(
    rf"\\(?:u{_HEX}{{0,3}}|U{_HEX}{{0,7}}|x{_HEX}?|[0-7]{{1,2}}|N(?:\{{[^{{}}\\]{{0,100}})?"
    rf"|u[dD][89abAB]{_HEX}{{2}}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)?"
)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}


@dataclass(frozen=True, slots=True)
class Unescaped:
    """`places[i]` is where character i of `text` begins in what was written."""

    text: str = ""
    places: tuple[int, ...] = ()

    def __add__(self, other: "Unescaped") -> "Unescaped":
        return Unescaped(self.text + other.text, self.places + other.places)

    def last(self, characters: int) -> "Unescaped":
        return Unescaped(self.text[-characters:], self.places[-characters:])


@dataclass(slots=True)
class Unescaper:
    """Takes what is written in chunks. How it is cut changes nothing: an escape comes out with its last character."""

    _begun: str = ""  # of an escape
    _place: int = 0  # of what comes next, or of what is begun
    _made: list[str] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)

    @property
    def is_inside(self) -> bool:
        return bool(self._begun)

    def feed(self, chunk: str) -> Unescaped:
        text, self._begun = self._begun + chunk, ""
        at = 0
        while (escape := text.find("\\", at)) >= 0:
            self._keep(text[at:escape])
            if _BEGUN.fullmatch(text, escape):
                self._begun = text[escape:]
                at = len(text)
                break
            match = _ESCAPE.match(text, escape)
            at = escape + 1 if match is None else match.end()
            decoded = "\\" if match is None else _decoded(match)
            self._made.append(decoded)
            self._places += [self._place] * len(decoded)
            self._place += at - escape
        self._keep(text[at:])
        made = Unescaped("".join(self._made), tuple(self._places))
        self._made.clear()
        self._places.clear()
        return made

    def _keep(self, plain: str) -> None:
        self._made.append(plain)
        self._places += range(self._place, self._place + len(plain))
        self._place += len(plain)


def _decoded(escape: re.Match[str]) -> str:
    if pair := escape["pair"]:
        return encodable(chr(int(pair[1:5], 16)) + chr(int(pair[7:], 16)))
    if digits := escape["u"] or escape["U"] or escape["x"]:
        code = int(digits, 16)
        return encodable(chr(code)) if code < 0x110000 else escape[0]
    if octal := escape["octal"]:
        return chr(int(octal, 8))
    if name := escape["name"]:
        try:
            return unicodedata.lookup(name)
        except KeyError:
            return escape[0]
    return _LETTERS.get(escape["letter"], escape["letter"])
