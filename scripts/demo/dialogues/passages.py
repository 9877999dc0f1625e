"""Questions on a passage put in the context: what was asked for and its value, or that it is not in the passage.

An answer first names what was asked for, in the same words whatever the question's: what is then looked for stands
right before the place where it is told, and "who runs", "who leads" and "the head of" are one thing to look for.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.attributes import Attribute
from scripts.demo.dialogues.entities import ENTITIES, NOUNS, note
from scripts.demo.draw import Draw

NOT_THERE = "not in the passage"

FILLERS = [
    "Many people know this.",
    "It has been so for a long time.",
    "The weather there is often mild.",
    "Some say it will change soon.",
    "There is more to tell.",
    "The old people remember it well.",
    "Nobody was surprised.",
    "It was a quiet year.",
    "A longer report will follow.",
    "Details are in the archive.",
    "The newspapers wrote about it.",
    "Everyone is welcome.",
    "That is no secret.",
    "It all began with an idea.",
]


@dataclass(frozen=True)
class Fact:
    """A question, how the answer names what is asked for, the value, and the sentence that states it."""

    question: str
    named: str
    value: str
    sentence: str

    @property
    def answer(self) -> str:
        return f"{upper(self.named)} {self.value}."


@dataclass(frozen=True)
class Open:
    """A question that a text leaves open, and how the answer names what is asked for."""

    question: str
    named: str

    def answer(self, where: str) -> str:
        return f"{upper(self.named)} {where}."


@dataclass(frozen=True)
class Passage:
    """`absent`: what the text leaves open."""

    text: str
    facts: list[Fact]
    absent: list[Open]


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def passage(draw: Draw, most: int = 7) -> Passage:
    """A passage on one to three entities, the questions it answers and questions it does not."""
    maker, attributes = draw.choice(ENTITIES)
    if draw.chance(0.2):
        attributes = [
            note(noun) for noun in {draw.choice(NOUNS) if draw.chance(0.5) else draw.thing(): None for _ in range(8)}
        ]
    total = draw.integer(1, most)
    names = [maker(draw) for _ in range(draw.choice([1, 1, 2, 2, 3]))]
    names = list(dict.fromkeys(names))
    facts: list[tuple[str, Attribute]] = [(name, attribute) for name in names for attribute in attributes]
    draw.rng.shuffle(facts)
    stated, unstated = facts[:total], facts[total:]
    if draw.chance(0.7):
        stated.sort(key=lambda fact: names.index(fact[0]))
    sentences: list[str] = []
    told: list[Fact] = []
    for name, attribute in stated:
        value = attribute.value(draw)
        sentences.append(upper(draw.choice(attribute.sentences).format(e=name, v=value)))
        question = _open(draw, name, attribute)
        told.append(Fact(question.question, question.named, value, sentences[-1]))
        if draw.chance(0.12):
            sentences.append(draw.choice(FILLERS))
    said, named = askable(stated), {fact.named for fact in told}
    known = {name for name, _ in stated}
    stranger = maker(draw)
    absent = [_open(draw, name, attribute) for name, attribute in unstated if name in known]
    if stranger not in names:
        absent += [_open(draw, stranger, draw.choice(attributes)) for _ in range(2)]
    absent.append(_open(draw, draw.choice(names), draw.choice(draw.choice(ENTITIES)[1])))
    absent = [item for item in absent if item.question not in said and item.named not in named]
    return Passage(" ".join(sentences), told, absent) if absent else passage(draw, most)


def _open(draw: Draw, name: str, attribute: Attribute) -> Open:
    question = draw.expand(draw.choice(attribute.questions)).format(e=name)
    return Open(question, attribute.named.format(e=name))


@cache
def _wordings(template: str) -> frozenset[str]:
    """All that a template of choices expands to."""
    inner = re.search(r"\[([^\[\]]*)\]", template)
    if inner is None:
        return frozenset([template])
    made = (template[: inner.start()] + choice + template[inner.end() :] for choice in inner[1].split("|"))
    return frozenset(wording for each in made for wording in _wordings(each))


def askable(facts: Iterable[tuple[str, Attribute]]) -> set[str]:
    """Every question that the facts answer: another attribute may be asked for in the same words."""
    return {
        wording.format(e=name)
        for name, attribute in facts
        for template in attribute.questions
        for wording in _wordings(template)
    }


IN_USER = [
    "Passage: {p}\n\nQuestion: {q}",
    "{p}\n\n{q}",
    "Context:\n{p}\n\nQuestion: {q}",
    "Text: {p}\n{q}",
    "Read this: {p}\n{q}",
    "{p} {q}",
    "Here is a text: {p} {q}",
    "Use the text to answer the question.\n\n{p}\n\n{q}",
    "Context: {p}\nQuestion: {q}\nAnswer:",
    "Answer from this passage.\n{p}\n{q}",
    "{q}\n\n{p}",
    "{q}\nText: {p}",
    "Question: {q}\nPassage: {p}",
    "Document:\n{p}\n\n{q}",
    "Based on this: {p} {q}",
    'The text says: "{p}" {q}',
    '<document id="1">\n{p}\n</document>\n\n{q}',
    '<document id="1" title="notes.txt">\n{p}\n</document>\n\n{q}',
    '<document id="file-1" title="report.pdf">\n{p}\n</document>\n\n{q}',
    "read the text and tell me {q}\n{p}",
]
IN_SYSTEM = [
    "Answer from this passage: {p}",
    "Use the passage to answer.\n\n{p}",
    "You are a helpful assistant. Use this document:\n{p}",
    "Context:\n{p}",
    "Documents:\n[1] {p}",
    "Answer the question from the text below. If the text does not hold the answer, say so.\n\n{p}",
    "Retrieved passages:\n{p}",
    "Here is what is known: {p}",
    "You answer questions about this text:\n{p}",
    "Relevant documents:\n\n{p}",
    "Use the following passages when they help.\n\n[1] {p}",
]


def asked(draw: Draw, question: str) -> str:
    text = question + draw.choice(["?", "?", "?", ""])
    return text if draw.chance(0.4) else upper(text)


Pair = tuple[str, str]  # a question and its answer


def _of_fact(draw: Draw, fact: Fact) -> Pair:
    return asked(draw, fact.question), fact.answer


def _of_open(draw: Draw, item: Open) -> Pair:
    return asked(draw, item.question), item.answer(NOT_THERE)


def _pick(draw: Draw, source: Passage, absent: bool) -> Pair:
    return _of_open(draw, draw.choice(source.absent)) if absent else _of_fact(draw, draw.choice(source.facts))


def _some(draw: Draw, absent: bool, turns: int) -> Episode:
    source = passage(draw)
    last = _pick(draw, source, absent)
    before = dict.fromkeys(_pick(draw, source, draw.chance(0.35)) for _ in range(turns - 1))
    return _episode(draw, source, [*(pair for pair in before if pair != last), last], absent)


def _episode(draw: Draw, source: Passage, pairs: list[Pair], absent: bool) -> Episode:
    """The passage in the system's part or in the first message, and what is asked and answered on it."""
    skill = "passages, absent" if absent else "passages"
    if draw.chance(0.4):
        system = draw.choice(IN_SYSTEM)
        text = source.text
        if "[1]" in system and draw.chance(0.7):
            other = passage(draw, 3).text
            text = f"{text}\n[2] {other}"
        return Episode(skill, tuple(Exchange(q, a, a, key="") for q, a in pairs), system=system.format(p=text))
    first = draw.choice(IN_USER).format(p=source.text, q=pairs[0][0])
    return Episode(
        skill, (Exchange(first, pairs[0][1], pairs[0][1], key=""), *(Exchange(q, a, a, key="") for q, a in pairs[1:]))
    )


def present(draw: Draw) -> Episode:
    return _some(draw, absent=False, turns=draw.choice([1, 1, 1, 2, 3]))


def absent(draw: Draw) -> Episode:
    return _some(draw, absent=True, turns=draw.choice([1, 1, 1, 2, 3]))


def studied(draw: Draw) -> Episode:
    """A longer passage, asked for each of its facts and some that it leaves open: more is learned from as many tokens."""
    source = passage(draw, most=10)
    stated = [(_of_fact(draw, fact), False) for fact in draw.sample(source.facts, min(len(source.facts), 7))]
    unstated = [(_of_open(draw, item), True) for item in draw.sample(source.absent, min(len(source.absent), 4))]
    pairs = [*stated, *unstated[: max(1, round(0.6 * len(stated)))]]
    draw.rng.shuffle(pairs)
    return _episode(draw, source, [pair for pair, _ in pairs], absent=pairs[-1][1])


MAKERS: list[tuple[float, Maker]] = [(3.0, present), (2.0, absent), (8.0, studied)]
