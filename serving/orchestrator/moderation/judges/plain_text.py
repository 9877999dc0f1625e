"""A text as rules read it: what only hides words from a reader of bytes is undone."""

import re
import unicodedata
from dataclasses import dataclass

# Letters of other alphabets that look like Latin ones: in a word that has Latin letters too they are read as these.
_LOOKALIKES = str.maketrans("аеорсухіјѕԁɡһοαεινρτυχ", "aeopcyxijsdghoaeivptux")
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_WORD = re.compile(r"\w+")
_LATIN = re.compile(r"[A-Za-z]")


@dataclass(frozen=True, slots=True)
class PlainText:
    """`places[i]` is where character i of `text` stands in the original; None: at the same place."""

    text: str
    places: list[int] | None

    @classmethod
    def of(cls, text: str) -> "PlainText":
        if text.isascii():
            return cls(text, None)
        characters: list[str] = []
        places: list[int] = []
        for place, character in enumerate(text):
            if _INVISIBLE.match(character):
                continue
            for plain in unicodedata.normalize("NFKC", character):
                characters.append(plain)
                places.append(place)
        return cls(_WORD.sub(_unmixed, "".join(characters)), places)

    def place(self, index: int) -> int:
        return index if self.places is None else self.places[index]


def _unmixed(word: re.Match[str]) -> str:
    return word[0].translate(_LOOKALIKES) if _LATIN.search(word[0]) else word[0]
