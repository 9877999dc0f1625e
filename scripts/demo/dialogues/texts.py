"""Small work on the user's own words: repeat, spell, upper case, first letter, list in order."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw
from scripts.demo.words import COLOURS, FOODS, HOBBIES, JOBS, THINGS

LEAD = "[||||||hi, |please |can you |could you |now |ok, ]"


def phrase(draw: Draw) -> str:
    """A short phrase of ordinary and made-up words."""
    kind = draw.integer(0, 7)
    name, thing, colour = draw.first_name(), draw.thing(), draw.choice(COLOURS)
    return [
        lambda: (
            f"the {colour} {thing} is {draw.choice(['old', 'new', 'small', 'big', 'mine', 'gone', 'broken', 'heavy', 'here'])}"
        ),
        lambda: f"{name} likes {draw.choice(FOODS + HOBBIES)}",
        lambda: " ".join(draw.word() for _ in range(draw.integer(1, 4))),
        lambda: draw.code(),
        lambda: f"I saw a {thing} in {draw.place()}",
        lambda: f"{draw.choice(['hello', 'good day', 'well done', 'goodbye', 'see you', 'welcome'])} {name}",
        lambda: f"my {thing} has {draw.number(3)} {draw.thing()}s",
        lambda: " ".join([draw.choice(["hello", "bye", "good", "big", "my", "the"]), thing][draw.integer(0, 1) :]),
    ][kind]()


def echo(draw: Draw) -> Episode:
    text = phrase(draw)
    wordings = [
        LEAD + "[say|repeat|echo|write|type]: {x}",
        "repeat after me: {x}",
        LEAD + '[say|repeat|echo|write] "{x}"',
        LEAD + "[say|repeat|echo] this: {x}",
        "[copy|echo|repeat] this text: {x}",
        LEAD + "[say|repeat] the words {x}",
        LEAD + "[say|repeat] {x}",
    ]
    return Episode("texts", (Exchange(draw.say(wordings, x=text), text, text),))


def change(draw: Draw) -> Episode:
    text = phrase(draw)
    upper = draw.chance(0.7)
    kind = (
        "[upper case|uppercase|capital letters|capitals|all caps|upper-case|caps]"
        if upper
        else "[lower case|lowercase|small letters|lower-case]"
    )
    wordings = [
        LEAD + f"[write|put|say|type] in {kind}: {{x}}",
        LEAD + f"[convert|turn|change|make] this [to|into] {kind}: {{x}}",
        f"{kind}: {{x}}",
        LEAD + f'[write|put|convert|say] "{{x}}" in {kind}',
        LEAD + f"[write|put|say|type] {{x}} in {kind}",
    ]
    if not upper:
        text = text.title()
    answer = text.upper() if upper else text.lower()
    return Episode("texts", (Exchange(draw.say(wordings, x=text), answer, answer),))


def spell(draw: Draw) -> Episode:
    word = draw.choice([draw.word, lambda: draw.choice(THINGS + JOBS + FOODS), lambda: draw.first_name().lower()])()
    kind = draw.integer(0, 3)
    if kind <= 1:
        asked = draw.say(
            [
                LEAD + "spell {x}",
                "how do you spell {x}[?|]",
                LEAD + "spell the word {x}",
                "how is {x} spelled[?|]",
                LEAD + "[write|say] {x} letter by letter",
            ],
            x=word,
        )
        answer = "-".join(word)
    elif kind == 2:
        asked = draw.say(
            [
                "[what is|what's] the first letter of {x}[?|]",
                "first letter of {x}[?|]",
                "which letter does {x} [start|begin] with[?|]",
                "what letter does {x} start with[?|]",
            ],
            x=word,
        )
        answer = f"The first letter of {word} is {word[0]}."
    else:
        asked = draw.say(
            [
                "how many letters [are in|does the word|in] {x}[?|]",
                "how many letters has {x}[?|]",
                "count the letters [of|in] {x}",
                "how long is the word {x}[?|]",
            ],
            x=word,
        )
        answer = (
            ", ".join(f"{index + 1} {letter}" for index, letter in enumerate(word))
            + f". {word} has {len(word)} letters."
        )
    return Episode("texts", (Exchange(asked, answer, answer),))


MAKERS: list[tuple[float, Maker]] = [(1.5, echo), (1.0, change), (1.0, spell)]
