"""Random draws for the dialogues: wordings from a small grammar, noise as people type it, and values for the slots.

A template is plain text with `[this|that]` for a choice (choices nest) and `{slot}` for a value. Noise (lower case,
missing punctuation, typos) touches the template only, never the values, so that an answer may copy a value exactly.
"""

import hashlib
import random
import re
import string
from collections.abc import Sequence
from typing import TypeVar

from scripts.demo import words

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"(\{\w+\})")
_NOT_WORD = re.compile(r"[^a-z0-9]+")
T = TypeVar("T")
HELD_OUT_SHARE = 12


def is_held_out(key: str) -> bool:
    """Whether a wording or a value belongs to the held-out twelfth; independent of process and seed."""
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % HELD_OUT_SHARE == 0


def normalized(text: str) -> str:
    """The wording without case, punctuation and apostrophes: two texts that differ only there are one wording."""
    return _NOT_WORD.sub(" ", text.lower().replace("'", "")).strip()


class Draw:
    """One random stream. With `held_out`, made-up words come from the twelfth that training never sees."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self.rng = random.Random(seed)
        self.held_out = held_out

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def integer(self, low: int, high: int) -> int:
        """Uniform in low..high, both included."""
        return self.rng.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(options, count)

    def number(self, digits: int) -> int:
        """A number of at most `digits` digits, each length equally likely."""
        length = self.integer(1, digits)
        return self.integer(10 ** (length - 1) if length > 1 else 0, 10**length - 1)

    def word(self) -> str:
        """A made-up lower-case word of one to three syllables."""
        while True:
            count = self.rng.choices((1, 2, 3), (1, 5, 3))[0]
            text = "".join(self.choice(words.ONSETS) + self.choice(words.VOWELS) for _ in range(count))
            text += self.choice(words.CODAS)
            if len(text) >= 3 and is_held_out(text) == self.held_out:
                return text

    def first_name(self) -> str:
        return self.word().capitalize() if self.chance(0.5) or self.held_out else self.choice(words.FIRST_NAMES)

    def surname(self) -> str:
        return self.word().capitalize() if self.chance(0.5) or self.held_out else self.choice(words.SURNAMES)

    def full_name(self) -> str:
        return f"{self.first_name()} {self.surname()}"

    def place(self) -> str:
        if self.chance(0.5) or self.held_out:
            return self.word().capitalize()
        return self.choice(words.CITIES).replace("_", " ")

    def thing(self) -> str:
        return self.word() if self.chance(0.3) else self.choice(words.THINGS)

    def code(self) -> str:
        """A code such as K7-302 or 48213."""
        digits = "".join(self.choice(string.digits) for _ in range(self.integer(2, 6)))
        letters = "".join(self.choice(string.ascii_uppercase) for _ in range(self.integer(1, 3)))
        return self.choice([digits, digits, f"{letters}{digits}", f"{letters}-{digits}", f"{digits}{letters}"])

    def expand(self, template: str) -> str:
        """Replaces every `[this|that]` by one of its choices, innermost first."""
        while "[" in template:
            template = _CHOICE.sub(lambda match: self.choice(match[1].split("|")), template)
        return template

    def say(self, templates: "str | list[str]", noise: bool = True, **slots: object) -> str:
        """A wording of one of the templates, as a person might type it, with its slots filled."""
        text = self.expand(templates if isinstance(templates, str) else self.choice(templates))
        if noise:
            text = self._noisy(text)
        if slots:
            text = _SLOT.sub(lambda match: str(slots[match[1][1:-1]]), text)
        return text

    def _noisy(self, text: str) -> str:
        if self.chance(0.4):
            return _first_upper(text)
        if self.chance(0.6):
            text = "".join(part if part.startswith("{") else part.lower() for part in _SLOT.split(text))
        else:
            text = _first_upper(text)
        if self.chance(0.5):
            text = text.rstrip("?!.")
        if self.chance(0.3):
            text = text.replace("'", "")
        return self._mistyped(text) if self.chance(0.2) else text

    def _mistyped(self, text: str) -> str:
        """One slip, in the longest run of words between the values."""
        parts = _SLOT.split(text)
        at = max((index for index, part in enumerate(parts) if not part.startswith("{")), key=lambda i: len(parts[i]))
        if " " in parts[at].strip():  # a word by itself could become another
            parts[at] = self._typo(parts[at])
        return "".join(parts)

    def _typo(self, text: str) -> str:
        spots = [match.start() for match in re.finditer(r"(?<=[a-z])[a-z](?=[a-z]{2})", text)]
        if not spots:
            return text
        at = self.choice(spots)
        kind = self.integer(0, 3)
        if kind == 0:
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        if kind == 1:
            return text[:at] + text[at + 1 :]
        if kind == 2:
            return text[:at] + text[at] + text[at:]
        return text[:at] + self.choice(string.ascii_lowercase) + text[at + 1 :]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
