"""Tables of facts: countries, elements, planets, animals, opposites and a few single ones; and names that are in no table."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.tables import (
    ALIASES,
    COUNTRIES,
    ELEMENT,
    LEGS,
    OPPOSITES,
    ORDINALS,
    PAST,
    PLANETS,
    PLURALS,
    SIDES,
    SINGLE,
    SOUNDS,
    YOUNG,
)
from scripts.demo.draw import Draw

LEAD = "[||||||||hi, |hello, |hey, |please |ok, |so |and |well, |now |quick question: ]"
WHAT = "[what is|what's|whats|tell me|do you know|give me|can you tell me|name|could you tell me|i want to know|i need|say|please tell me|i'd like to know|remind me of]"
END = "[?|?|?|| please?| please]"


def bare(country: str) -> str:
    return country.removeprefix("the ")


def _cased(draw: Draw, text: str) -> str:
    return text.lower() if draw.chance(0.35) else text


def country(draw: Draw) -> Episode:
    name = draw.choice(list(COUNTRIES))
    capital, currency, continent, language = COUNTRIES[name]
    shown = draw.choice(ALIASES.get(name, [name])) if draw.chance(0.5) else name
    place = _cased(draw, shown)
    bare_place = _cased(draw, bare(shown))
    kind = draw.rng.choices(range(5), (5, 2, 2, 2, 2))[0]
    if kind == 0:
        wordings = [
            WHAT + " the capital [of|of|of|city of|for] {place}",
            "[what|which] [city|town] is the capital of {place}",
            "{bare}'s capital",
            "capital of {place}",
            "{bare} capital",
            "[what's|what is|whats|tell me] {bare}'s capital",
            "[where is|what is] the capital of {place}",
            "the capital of {place} is",
            "and {place}",
            "the capital of {place}",
            "and the capital of {place}",
            "how about [the capital of |]{place}",
            "what about the capital of {place}",
            "[what is|what's] the capital [city |]in {place}",
        ]
        wordings = [item for item in wordings if item not in ("and {place}", "how about [the capital of |]{place}")]
        answer, brief = f"The capital of {name} is {capital}.", f"{capital}."
    elif kind == 1:
        wordings = [
            WHAT + " the [currency|money] [of|in|used in] {place}",
            "[what|which] [currency|money] [is used|do they use|do people use|is there|does one need] in {place}",
            "currency of {place}",
            "{bare}'s currency",
            "what do [they|people|you] pay with in {place}",
            "how do [people|i] pay in {place}",
        ]
        answer, brief = f"The currency of {name} is the {currency}.", f"The {currency}."
    elif kind == 2:
        wordings = [
            "[what|which] continent is {place} [in|on|part of]",
            "on [what|which] continent is {place}",
            WHAT + " the continent of {place}",
            "continent of {place}",
            "where [in the world |]is {place}",
            "where on earth is {place}",
            "in [what|which] part of the world is {place}",
            "[what|which] continent does {place} belong to",
        ]
        answer, brief = f"{name[0].upper()}{name[1:]} is in {continent}.", f"{continent}."
    elif kind == 3:
        wordings = [
            "[what|which] language [is spoken|do they speak|do people speak|is used|does one speak] in {place}",
            WHAT + " the [language|main language|official language] [of|in|spoken in] {place}",
            "language of {place}",
            "what do [they|people] speak in {place}",
            "{bare}'s language",
        ]
        answer, brief = f"The language of {name} is {language}.", f"{language}."
    else:
        if capital == "London":
            name = "the United Kingdom"
        place = _cased(draw, capital)
        wordings = [
            "{place} is the capital of [what|which|what country|which country]",
            "[what|which] country [is {place} the capital of|has the capital {place}|has {place} as its capital]",
            "of [what|which] country is {place} the capital",
            "[what|which] country's capital is {place}",
            "[what|which] country is {place} in",
            "in [what|which] country is {place}",
            "where is {place}",
        ]
        answer, brief = f"{capital} is the capital of {name}.", f"{name[0].upper()}{name[1:]}."
    text = draw.say(LEAD + draw.choice(wordings) + END, place=place, bare=bare_place)
    return Episode("facts", (Exchange(text, answer, brief),))


def element(draw: Draw) -> Episode:
    name = draw.choice(list(ELEMENT))
    symbol, number = ELEMENT[name]
    kind = draw.rng.choices(range(4), (4, 3, 3, 1))[0]
    if kind == 0:
        wordings = [
            WHAT + " the [symbol|chemical symbol|element symbol] [of|for] {name}",
            "symbol [of|for] {name}",
            "[what|which] symbol [does|has] {name} [have|]",
            "[what|which] is {name}'s symbol",
            "{name} symbol",
            "chemical symbol [of|for] {name}",
            "how is {name} written in chemistry",
        ]
        answer, brief = f"The symbol of {name} is {symbol}.", f"{symbol}."
    elif kind == 1:
        wordings = [
            WHAT + " the [atomic number|element number] of {name}",
            "atomic number of {name}",
            "[what|which] atomic number [does|has] {name} [have|]",
            "how many protons [has|does] {name} [have|]",
            "{name}'s atomic number",
            "{name} atomic number",
            "[what|which] number is {name} in the periodic table",
        ]
        answer, brief = f"The atomic number of {name} is {number}.", f"{number}."
    elif kind == 2:
        wordings = [
            "[what|which] element [has the symbol|is|has symbol] {symbol}",
            "what does {symbol} stand for [in chemistry|]",
            "{symbol} is the symbol of [what|which element]",
            "[what|which] element is [written|called] {symbol}",
            "name the element {symbol}",
            "element with [the|] symbol {symbol}",
            "what is {symbol} in the periodic table",
        ]
        answer, brief = f"{symbol} is {name}.", f"{name.capitalize()}."
    else:
        wordings = [
            "[what|which] element [has|is] [atomic number|number] {number}",
            "element [number|] {number}",
            "[what|which] is element number {number}",
            "[what|which] element has {number} protons",
        ]
        answer, brief = f"Element {number} is {name}.", f"{name.capitalize()}."
    text = draw.say(LEAD + draw.choice(wordings) + END, name=name, symbol=symbol, number=number)
    return Episode("facts", (Exchange(text, answer, brief, key=f"{text.lower()}" if kind != 2 else None),))


def word_table(draw: Draw) -> Episode:
    kind = draw.integer(0, 8)
    if kind == 0:
        young = draw.choice(list(YOUNG))
        article = "an" if young[0] in "aeiou" else "a"
        text = draw.say(
            LEAD
            + "["
            + WHAT[1:-1]
            + "] [the young of|the name of the young of|the word for a young|a baby|a young|the baby of] {article} {x}"
            + END,
            x=young,
            article=article,
        )
        text = text.replace(f"baby {article} {young}", f"baby {young}").replace(
            f"young {article} {young}", f"young {young}"
        )
        exchange = Exchange(text, f"A young {young} is a {YOUNG[young]}.", f"A {YOUNG[young]}.")
    elif kind == 1:
        word = draw.choice(list(OPPOSITES))
        text = draw.say(
            LEAD + "[" + WHAT[1:-1] + "] [the opposite|the antonym|an antonym|an opposite] of {x}" + END
            if draw.chance(0.7)
            else "[opposite of {x}|what is not {x}|antonym of {x}|the opposite of {x} is|which word is the opposite of {x}]"
            + END,
            x=word,
        )
        exchange = Exchange(text, f"The opposite of {word} is {OPPOSITES[word]}.", f"{OPPOSITES[word].capitalize()}.")
    elif kind == 2:
        word = draw.choice(list(PLURALS))
        text = draw.say(
            LEAD + "[" + WHAT[1:-1] + "] the plural [of|form of] {x}" + END
            if draw.chance(0.7)
            else "[plural of {x}|what do you call several {x}|one {x}, two what|the plural of {x} is]" + END,
            x=word,
        )
        exchange = Exchange(text, f"The plural of {word} is {PLURALS[word]}.", f"{PLURALS[word].capitalize()}.")
    elif kind == 3:
        word = draw.choice(list(PAST))
        text = draw.say(
            LEAD + "[" + WHAT[1:-1] + "] the [past tense|past|past form|simple past] of [|to ]{x}" + END
            if draw.chance(0.7)
            else "[past tense of {x}|past of {x}|put {x} in the past tense|the past tense of {x} is]" + END,
            x=word,
        )
        exchange = Exchange(text, f"The past tense of {word} is {PAST[word]}.", f"{PAST[word].capitalize()}.")
    elif kind == 4:
        word = draw.choice(list(LEGS))
        article = "an" if word[0] in "ao" else "a"
        text = draw.say(
            LEAD
            + "[how many legs [does {a} {x} have|has {a} {x}|has {a} {x} got|are on {a} {x}]|the number of legs of {a} {x}|what is the number of legs of {a} {x}]"
            + END,
            x=word,
            a=article,
        )
        exchange = Exchange(text, f"{article.capitalize()} {word} has {LEGS[word]} legs.", f"{LEGS[word]}.")
    elif kind == 5:
        word = draw.choice(list(SIDES))
        article, part = ("an" if word[0] == "o" else "a"), ("faces" if word == "cube" else "sides")
        text = draw.say(
            LEAD
            + "[how many {p} [does {a} {x} have|has {a} {x}|has {a} {x} got|are in {a} {x}]|the number of {p} of {a} {x}|what is the number of {p} of {a} {x}]"
            + END,
            x=word,
            a=article,
            p=part,
        )
        exchange = Exchange(text, f"{article.capitalize()} {word} has {SIDES[word]} {part}.", f"{SIDES[word]}.")
    elif kind == 6:
        word = draw.choice(list(SOUNDS))
        article = "an" if word[0] == "o" else "a"
        text = draw.say(
            LEAD
            + "[what [sound|noise] does {a} {x} make|what does {a} {x} say|how does {a} {x} sound|which sound does {a} {x} make|what is the sound of {a} {x}]"
            + END,
            x=word,
            a=article,
        )
        exchange = Exchange(
            text, f"{article.capitalize()} {word} says {SOUNDS[word]}.", f"{SOUNDS[word].capitalize()}."
        )
    else:
        index = draw.integer(0, 7)
        planet, ordinal = PLANETS[index], ORDINALS[index]
        if draw.chance(0.5):
            text = draw.say(
                LEAD
                + "[what is|which is|what's|name|tell me|which planet is|what planet is] the {o} planet [|from the sun|of the solar system]"
                + END,
                o=ordinal,
            )
            exchange = Exchange(text, f"The {ordinal} planet is {planet}.", f"{planet}.")
        else:
            text = draw.say(
                LEAD
                + "[what|which] number [planet |]is {p} [|from the sun|among the planets|in the solar system]"
                + END
                if draw.chance(0.5)
                else "[where in the solar system is {p}|what is the position of {p} [from the sun|in the solar system|]]"
                + END,
                p=_cased(draw, planet),
            )
            exchange = Exchange(text, f"{planet} is the {ordinal} planet.", f"The {ordinal}.")
    return Episode("facts", (exchange,))


def single(draw: Draw) -> Episode:
    answer, brief, *wordings = draw.choice(SINGLE)
    return Episode(
        "facts", (Exchange(draw.say(LEAD + draw.choice(wordings).strip() + END).replace(" ?", "?"), answer, brief),)
    )


def unknown(draw: Draw) -> Episode:
    """Asks a table for a name that is not in it: made-up countries, elements and animals."""
    name = draw.word()
    what, wordings = draw.choice(
        [
            (
                "capital",
                [
                    WHAT + " the capital of {x}",
                    "capital of {x}",
                    "{x}'s capital",
                    "[what|which] city is the capital of {x}",
                    "[what's|what is] {x}'s capital",
                ],
            ),
            (
                "currency",
                [WHAT + " the currency [of|in] {x}", "currency of {x}", "[what|which] currency is used in {x}"],
            ),
            (
                "language",
                [WHAT + " the language of {x}", "[what|which] language is spoken in {x}", "what do they speak in {x}"],
            ),
            ("continent", ["[what|which] continent is {x} [in|on]", "on which continent is {x}"]),
            ("symbol", [WHAT + " the [symbol|chemical symbol] [of|for] {x}", "symbol for {x}"]),
            ("atomic number", [WHAT + " the atomic number of {x}", "atomic number of {x}"]),
            ("plural", [WHAT + " the plural of {x}", "plural of {x}"]),
            ("opposite", [WHAT + " the opposite of {x}", "opposite of {x}"]),
            ("past tense", [WHAT + " the past tense of {x}", "past tense of {x}"]),
        ]
    )
    shown = name.capitalize() if what in ("capital", "currency", "language", "continent") and draw.chance(0.7) else name
    text = draw.say(LEAD + draw.choice(wordings) + END, x=shown)
    return Episode("facts", (Exchange(text, f"I don't know the {what} of {shown}.", "I don't know."),))


FOLLOWED = [
    (0, "The capital of {n} is {v}.", "{v}.", "[what is|what's] the capital of {p}"),
    (1, "The currency of {n} is the {v}.", "The {v}.", "[what is|what's] the currency of {p}"),
    (2, "{N} is in {v}.", "{v}.", "[what|which] continent is {p} [in|on]"),
    (3, "The language of {n} is {v}.", "{v}.", "[what|which] language [is spoken|do they speak] in {p}"),
]


def follow_up(draw: Draw) -> Episode:
    """A question on one country, then "and Spain?": the second asks for the same thing."""
    column, answer, brief, question = draw.choice(FOLLOWED)
    exchanges: list[Exchange] = []
    for index, name in enumerate(draw.sample(list(COUNTRIES), draw.choice([2, 2, 3]))):
        place = _cased(draw, draw.choice([name, bare(name)]) if index else name)
        wording = (
            question
            if index == 0
            else "[and|what about|how about|and what about|and of|and for|and in|now|ok, and|and how about|then what about] {p}"
        )
        values = {"n": name, "N": name[0].upper() + name[1:], "v": COUNTRIES[name][column]}
        exchanges.append(
            Exchange(draw.say(wording + "[?|?|]", p=place), answer.format(**values), brief.format(**values))
        )
    return Episode("facts", tuple(exchanges))


MAKERS: list[tuple[float, Maker]] = [
    (1.2, follow_up),
    (5.0, country),
    (2.5, element),
    (3.5, word_table),
    (1.5, single),
    (1.0, unknown),
]
