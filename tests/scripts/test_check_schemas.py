"""Schemas of the JSON-Schema test suite: what is said under those that can be compiled always validates, the rest is
refused."""

from pathlib import Path

import jsonschema
import pytest

from scripts.check_schemas import DEMO, Checker, groups
from serving.generation.grammar_vocabulary import vocabulary_of
from serving.generation.tokenizer import load_tokenizer

SUITE = Path(__file__).parent / "json_schema_suite"


@pytest.fixture
def checker() -> Checker:
    return Checker(vocabulary_of(load_tokenizer(DEMO)), walks=2)


def test_whatever_is_said_under_a_schema_of_the_suite_validates(checker: Checker) -> None:
    for name, group in groups(SUITE):
        checker.check(name, group, jsonschema.Draft202012Validator)
    checker.close()
    result = checker.result
    assert result.failures == []
    assert result.supported > 100
    assert result.validated > 200
    assert result.valid_accepted > 150
    assert {reason.split(":")[0] for reason in result.refused} >= {"Unimplemented keys", "Unsatisfiable schema"}


def test_a_grammar_that_allows_too_much_would_be_found(checker: Checker) -> None:
    """The judge is given another schema than the grammar's."""
    ((_, group),) = [item for item in groups(SUITE) if item[0] == "enum.json: simple enum validation"]
    checker.check("other", group, lambda _: jsonschema.Draft202012Validator({"const": "never"}))
    checker.close()
    assert len(checker.result.failures) == 2
