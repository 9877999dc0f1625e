"""What a program makes of a literal, told while it is written."""

import ast
import json

import pytest

from serving.orchestrator.moderation.unescaped import Unescaped, Unescaper

JSON = [
    r"bomb",
    r"\u0062omb",
    r"\u0062\u006f\u006D\u0062",
    r"\ud835\udc4fomb and \uD83D\uDE00",
    r"line\nline\ttab \"quoted\" and\/or a \\u0062 that is none, \b\f\r",
    r"\\\\u0062 and \\\u0062",
]
PYTHON = [r"\x62omb", r"\142omb \0", r"\N{LATIN SMALL LETTER B}omb", r"\U00000062omb", "bo\\\nmb", r"it\'s \a\v"]


def read(text: str, size: int = 1) -> Unescaped:
    unescaper = Unescaper()
    return sum((unescaper.feed(text[at : at + size]) for at in range(0, len(text), size)), Unescaped())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("written", JSON + PYTHON)
def test_it_reads_as_the_program_does_however_it_is_cut(written: str, size: int) -> None:
    meant = json.loads(f'"{written}"') if written in JSON else ast.literal_eval(f'"{written}"')
    assert read(f'"{written}" ', size).text == f'"{meant}" '
    assert read(f'"{written}" ', size) == read(f'"{written}" ', 1000)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("written", [r"\q", r"\u00zz", r"\xz", r"\N{NO SUCH NAME}", r"\Uffffffff", r"\cdot"])
def test_what_is_no_escape_stays(written: str, size: int) -> None:
    assert read(f"{written} ", size).text == f"{written} "


def test_a_lone_half_of_a_pair_is_a_character_that_can_be_sent() -> None:
    assert read(r"a\ud835b").text == "a\N{REPLACEMENT CHARACTER}b"


def test_characters_know_where_they_were_written() -> None:
    assert read(r'a\u0062\n"') == Unescaped('ab\n"', (0, 1, 7, 9))
    assert Unescaped("abc", (0, 1, 7)).last(2) == Unescaped("bc", (1, 7))


def test_an_escape_comes_with_its_last_character() -> None:
    unescaper = Unescaper()
    assert unescaper.feed("a\\u006").text == "a"
    assert unescaper.is_inside
    assert unescaper.feed("2").text == "b"
    assert not unescaper.is_inside
