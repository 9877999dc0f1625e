"""One fact about an entity of a passage, and the values that facts take."""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.demo.draw import Draw
from scripts.demo.words import COLOURS

MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True)
class Attribute:
    """One fact about an entity {e}: how an answer names it, sentences that state {v}, and questions for it."""

    named: str
    value: Callable[[Draw], str]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


def year(draw: Draw) -> str:
    return str(draw.integer(1200, 2030))


def day(draw: Draw) -> str:
    return (
        f"{draw.integer(1, 28)} {draw.choice(MONTHS)}"
        if draw.chance(0.6)
        else f"{draw.choice(MONTHS)} {draw.integer(1, 28)}"
    )


def clock(draw: Draw) -> str:
    return f"{draw.integer(6, 22)}:{draw.choice(['00', '15', '30', '45'])}"


def count(draw: Draw) -> str:
    number = draw.number(5)
    return f"{number:,}" if draw.chance(0.4) else str(number)


def money(draw: Draw) -> str:
    return f"{draw.number(4)} {draw.choice(['euros', 'dollars', 'pounds', 'francs', 'crowns'])}"


def things(draw: Draw) -> str:
    return f"{draw.choice([*COLOURS, 'old', 'wooden', 'paper', 'small', 'steel', 'glass'])} {draw.thing()}s"


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def made_up(draw: Draw) -> str:
    return draw.word().capitalize()
