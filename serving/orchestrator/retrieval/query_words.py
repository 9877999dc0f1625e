"""A question's words, as full text is searched by, and the words of a text."""

import re
import unicodedata

MOST_WORDS = 64
LONGEST_WORD = 64  # characters; of a longer one, such as coded bytes, these
_WORDS = re.compile(r"\w+")
_PARTS = re.compile(r"[^\W_]+")
# They are in nearly every passage: what they cost in time they do not give in rank.
_EVERYWHERE = frozenset(
    "a about after all also an and any are as at be because been before being between both but by can could did do "
    "does doing for from had has have having he her here him his how i if in into is it its just many may me might "
    "more most much must my no nor not of on only or other our out over own same shall she should so some such than "
    "that the their them then there these they this those through to too under until up very was we were what when "
    "where which while who whom whose why will with would you your".split()
)


def query_words(query: str) -> list[str]:
    """Without those that say nothing, unless nothing else is there. Letters, digits and underscores alone."""
    words = list(dict.fromkeys(word.lower() for word in _WORDS.findall(query)))
    return ([word for word in words if word not in _EVERYWHERE] or words)[:MOST_WORDS]


def plain_words(text: str) -> str:
    """Its letters and digits, in small letters without their marks, a space between words: what an index that has
    ideas of its own about what a word is can be given, of passages and of questions alike."""
    bare = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return " ".join(word[:LONGEST_WORD] for word in _PARTS.findall(bare.lower()))
