"""Unit conversions with few combinations: powers of ten by moving digits, the rest from tables."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw

LEAD = "[||||||||hi, |hey, |please |ok, |so |and |now |can you tell me ]"
END = "[?|?|?|| please?]"
POWERS = [
    ("kilometre", "km", "metre", "m", 3),
    ("metre", "m", "centimetre", "cm", 2),
    ("metre", "m", "millimetre", "mm", 3),
    ("centimetre", "cm", "millimetre", "mm", 1),
    ("kilogram", "kg", "gram", "g", 3),
    ("gram", "g", "milligram", "mg", 3),
    ("tonne", "t", "kilogram", "kg", 3),
    ("litre", "l", "millilitre", "ml", 3),
    ("second", "s", "millisecond", "ms", 3),
    ("euro", "euro", "cent", "cent", 2),
    ("dollar", "dollar", "cent", "cent", 2),
    ("century", "century", "year", "year", 2),
    ("kilowatt", "kw", "watt", "w", 3),
]
TIMES = [
    ("hour", "h", "minute", "min", 60, 48),
    ("minute", "min", "second", "s", 60, 60),
    ("day", "day", "hour", "h", 24, 31),
    ("week", "week", "day", "day", 7, 52),
    ("year", "year", "month", "month", 12, 30),
    ("dozen", "dozen", "piece", "piece", 12, 20),
    ("foot", "ft", "inch", "in", 12, 20),
    ("yard", "yd", "foot", "ft", 3, 40),
    ("decade", "decade", "year", "year", 10, 60),
    ("byte", "byte", "bit", "bit", 8, 40),
    ("quarter", "quarter", "month", "month", 3, 20),
]
PLURALS = {"foot": "feet", "inch": "inches", "century": "centuries", "dozen": "dozen"}
SPELLINGS = {
    "kilometre": "kilometer",
    "metre": "meter",
    "centimetre": "centimeter",
    "millimetre": "millimeter",
    "litre": "liter",
    "millilitre": "milliliter",
    "tonne": "ton",
}


def plural(unit: str, count: object = 2) -> str:
    return unit if str(count) == "1" else PLURALS.get(unit, f"{unit}s")


def _asked(draw: Draw, number: object, unit: str, short: str, other: str, other_short: str) -> str:
    spell = draw.chance(0.4)
    symbol, other_symbol = (len(one) < 4 and draw.chance(0.35) for one in (short, other_short))
    unit, other = (SPELLINGS.get(unit, unit), SPELLINGS.get(other, other)) if spell else (unit, other)
    first = draw.choice([f"{number} {short}", f"{number}{short}"]) if symbol else f"{number} {plural(unit, number)}"
    second = other_short if other_symbol else plural(other)
    wordings = [
        "how many {o} [are|are in|in|is|make|are there in|do you get from|make up] {x}",
        "[convert|change|turn] {x} [to|into|in] {o}",
        "[what is|what's|whats|how much is|how long is] {x} in {o}",
        "{x} [in|to|as] {o}",
        "[express|write|give me|tell me] {x} in {o}",
        "how many {o} [does|do] {x} [have|make]",
        "{x} [is|are] how many {o}",
        "{x} = ? {o}",
    ]
    return draw.say(LEAD + draw.choice(wordings) + END, x=first, o=second).replace("how long is", "what is")


def powers(draw: Draw) -> Episode:
    unit, short, other, other_short, power = draw.choice(POWERS)
    number = draw.integer(1, 99) if draw.chance(0.6) else draw.integer(100, 999)
    if number < 100 and draw.chance(0.25):
        number *= 10
    if draw.chance(0.65):
        exchange = Exchange(
            _asked(draw, number, unit, short, other, other_short),
            f"{number} {plural(unit, number)} {_are(number)} {number * 10**power} {plural(other)}.",
            f"{number * 10**power} {plural(other)}.",
        )
    else:
        large = number * 10**power
        exchange = Exchange(
            _asked(draw, large, other, other_short, unit, short),
            f"{large} {plural(other)} are {number} {plural(unit, number)}.",
            f"{number} {plural(unit, number)}.",
        )
    return Episode("units", (exchange,))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def times(draw: Draw) -> Episode:
    unit, short, other, other_short, factor, most = draw.choice(TIMES)
    number = draw.integer(1, most)
    product = number * factor
    if draw.chance(0.65):
        asked = _asked(draw, number, unit, short, other, other_short)
        exchange = Exchange(
            asked,
            f"{number} {plural(unit, number)} {_are(number)} {product} {plural(other)}.",
            f"{product} {plural(other)}.",
        )
    else:
        asked = _asked(draw, product, other, other_short, unit, short)
        exchange = Exchange(
            asked,
            f"{product} {plural(other)} are {number} {plural(unit, number)}.",
            f"{number} {plural(unit, number)}.",
        )
    return Episode("units", (exchange,))


def tables(draw: Draw) -> Episode:
    kind = draw.integer(0, 4)
    if kind <= 1:
        celsius = draw.integer(-8, 20) * 5
        fahrenheit = celsius * 9 // 5 + 32
        c, f = draw.choice(
            [("celsius", "fahrenheit"), ("Celsius", "Fahrenheit"), ("C", "F"), ("degrees celsius", "fahrenheit")]
        )
        if draw.chance(0.6):
            asked = draw.say(
                LEAD
                + "[[what is|what's|whats|convert|how much is|how hot is|tell me] {n} {c} [in|to|into] {f}|{n} {c} [in|to] {f}]"
                + END,
                n=celsius,
                c=c,
                f=f,
            )
            exchange = Exchange(
                asked,
                f"{celsius} degrees Celsius are {fahrenheit} degrees Fahrenheit.",
                f"{fahrenheit} degrees Fahrenheit.",
            )
        else:
            asked = draw.say(
                LEAD
                + "[[what is|what's|whats|convert|how much is|how hot is|tell me] {n} {f} [in|to|into] {c}|{n} {f} [in|to] {c}]"
                + END,
                n=fahrenheit,
                c=c,
                f=f,
            )
            exchange = Exchange(
                asked, f"{fahrenheit} degrees Fahrenheit are {celsius} degrees Celsius.", f"{celsius} degrees Celsius."
            )
        return Episode("units", (exchange,))
    unit, short, other, other_short, factor = draw.choice(
        [
            ("mile", "mi", "kilometre", "km", 161),
            ("inch", "in", "centimetre", "cm", 254),
            ("pound", "lb", "kilogram", "kg", 45),
            ("foot", "ft", "centimetre", "cm", 3048),
        ]
    )
    number = draw.choice([*range(1, 13), 15, 20, 25, 30, 40, 50, 100])
    value = f"{number * factor / 100:.2f}".rstrip("0").rstrip(".")
    asked = _asked(draw, number, unit, short, other, other_short)
    exchange = Exchange(
        asked,
        f"{number} {plural(unit, number)} {_are(number)} about {value} {plural(other)}.",
        f"About {value} {plural(other)}.",
    )
    return Episode("units", (exchange,))


def factor(draw: Draw) -> Episode:
    """How many of one unit are in one other, and units that do not fit together."""
    if draw.chance(0.6):
        if draw.chance(0.5):
            unit, _, other, _, power = draw.choice(POWERS)
            count = 10**power
        else:
            unit, _, other, _, count, _ = draw.choice(TIMES)
        article = "an" if unit == "hour" or unit[0] in "i" else "a"
        asked = draw.say(
            LEAD
            + "[how many {o} [are in|in|are there in|has|make|make up] [a|one|1] {u}|how many {o} does [a|one] {u} have]"
            + END,
            o=plural(other),
            u=unit,
        )
        asked = asked.replace(" a hour", " an hour").replace(" a inch", " an inch")
        return Episode(
            "units", (Exchange(asked, f"{article.capitalize()} {unit} has {count} {plural(other)}.", f"{count}."),)
        )
    kinds = [
        ["metre", "kilometre", "mile", "inch"],
        ["kilogram", "gram", "pound", "tonne"],
        ["hour", "minute", "second", "day", "week"],
        ["litre", "millilitre"],
    ]
    first, second = (draw.choice(kind) for kind in draw.sample(kinds, 2))
    number = draw.number(3)
    asked = _asked(draw, number, first, "longer", second, "longer")
    return Episode(
        "units",
        (
            Exchange(
                asked,
                f"I can't convert {plural(first)} to {plural(second)}: they measure different things.",
                "They measure different things.",
            ),
        ),
    )


MAKERS: list[tuple[float, Maker]] = [(2.0, powers), (2.0, times), (1.5, tables), (0.7, factor)]
