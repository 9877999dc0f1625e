"""The set in recall_set.toml: documents, and questions with the words that answer them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

_PATH = Path(__file__).with_name("recall_set.toml")


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: str  # words that stand in one paragraph alone


@dataclass(frozen=True, slots=True)
class RecallSet:
    documents: dict[str, str]  # by file name
    questions: tuple[Question, ...]


def read_recall_set() -> RecallSet:
    """Raises ValueError for an answer that does not stand in exactly one document, once."""
    table = tomllib.loads(_PATH.read_text(encoding="utf-8"))
    documents = {each["name"]: each["text"].strip() for each in table["documents"]}
    questions = tuple(Question(each["ask"], each["answer"]) for each in table["questions"])
    every = "\n".join(documents.values())
    for question in questions:
        if every.count(question.answer) != 1:
            raise ValueError(f"{question.answer!r} stands {every.count(question.answer)} times in the documents")
    return RecallSet(documents, questions)
