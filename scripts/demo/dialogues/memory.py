"""What was said earlier: names, numbers, places, orders; the latest word counts, and what was never said is not known."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.texts import phrase
from scripts.demo.draw import Draw
from scripts.demo.words import ANIMALS, COLOURS, FOODS, HOBBIES, JOBS, THINGS

NOT_TOLD = "You have not told me"
END = "[?|?|?|]"
OPEN = "[||||||by the way, |so, |ok, |also, |fyi, |well, |hi, |hello, |btw ]"


def _value(draw: Draw, kind: str) -> str:
    if kind in ("name",):
        return draw.first_name() if draw.chance(0.8) else draw.full_name()
    if kind.endswith("name") or kind in (
        "brother",
        "sister",
        "boss",
        "friend",
        "neighbour",
        "wife",
        "husband",
        "son",
        "daughter",
        "teacher",
        "colleague",
        "cat",
        "dog",
    ):
        return draw.first_name()
    if kind in ("city", "home town"):
        return draw.place()
    if kind == "job":
        return draw.choice(JOBS)
    if kind == "age":
        return str(draw.integer(5, 99))
    if kind.endswith("colour") or kind.endswith("color"):
        return draw.choice(COLOURS)
    if kind == "favourite food":
        return draw.choice(FOODS)
    if kind == "favourite animal":
        return draw.choice(ANIMALS)
    if kind == "hobby":
        return draw.choice(HOBBIES)
    if kind.split()[-1] in FAVOURITES:
        return draw.choice([draw.word, draw.place, draw.full_name, draw.thing])()
    if kind == "favourite number":
        return str(draw.number(3))
    if kind in ("birthday",):
        return f"{draw.integer(1, 28)} {draw.choice('January February March April May June July August September October November December'.split())}"
    return draw.code()


TELL = {
    "name": "[my name is|my name's|i am|i'm|call me|this is|it's|people call me|you can call me|my name is|my name is] {v}[|.|!]",
    "city": "[i live in|i'm from|i am from|i come from|my city is|my home is in|i'm living in|i moved to] {v}[|.]",
    "job": "[i am a|i'm a|i work as a|my job is] {v}[|.]",
    "age": "[i am {v} years old|i'm {v}|my age is {v}|i am {v}|i just turned {v}][|.]",
    "hobby": "[my hobby is|i like|i love|i enjoy|i do a lot of] {v}[|.]",
    "birthday": "[my birthday is [on |]|i was born on |my birthday's ]{v}[|.]",
}
ASKED = {
    "name": [
        "[what is|what's|whats|do you know|do you remember|tell me|say|can you tell me|remind me of] my name",
        "who am i",
        "what am i called",
        "what was my name",
        "do you know who i am",
        "what did i say my name was",
        "and my name",
    ],
    "city": [
        "where do i live",
        "where am i from",
        "[what is|what's|which is] my city",
        "[what|which] city [do i live in|am i from|am i in]",
        "where did i say i live",
        "where do i come from",
        "do you know where i live",
    ],
    "job": [
        "[what is|what's|whats|do you remember|tell me] my [job|profession]",
        "what do i do [for a living|for work|]",
        "what do i work as",
        "what am i by profession",
        "where do i work as what",
    ],
    "age": [
        "how old am i",
        "[what is|what's|whats|do you remember|tell me] my age",
        "how old did i say i am",
        "do you know how old i am",
    ],
    "hobby": [
        "[what is|what's|whats|do you remember|tell me] my hobby",
        "what do i [like|like to do|enjoy|do in my free time]",
    ],
    "birthday": [
        "when is my birthday",
        "[what is|what's] my birthday",
        "when was i born",
        "do you remember my birthday",
        "what day is my birthday",
    ],
}
SAID = {
    "name": "Your name is {v}.",
    "city": "You live in {v}.",
    "job": "You are a {v}.",
    "age": "You are {v} years old.",
    "hobby": "Your hobby is {v}.",
    "birthday": "Your birthday is {v}.",
}
POSSESSIONS = [
    "favourite colour",
    "favorite color",
    "favourite food",
    "favourite animal",
    "favourite number",
    "locker code",
    "door code",
    "room number",
    "password",
    "order number",
    "ticket number",
    "seat",
    "phone number",
    "lucky number",
    "brother",
    "sister",
    "boss",
    "friend",
    "neighbour",
    "wife",
    "husband",
    "son",
    "daughter",
    "teacher",
    "colleague",
    "cat",
    "dog",
    "cat's name",
    "dog's name",
    "project name",
    "customer number",
    "flight number",
    "license plate",
    "home town",
]
FAVOURITES = "movie book song city sport drink game band season flower country singer writer dish snack show teacher place word planet bird tree".split()
PEOPLE = (
    "brother",
    "sister",
    "boss",
    "friend",
    "neighbour",
    "wife",
    "husband",
    "son",
    "daughter",
    "teacher",
    "colleague",
    "cat",
    "dog",
)


def told(draw: Draw, kind: str) -> tuple[Exchange, Exchange, Exchange]:
    """A statement, the question about it, and the same question when nothing was said."""
    value = _value(draw, kind)
    if draw.chance(0.3) and kind not in TELL:
        value = value.lower()
    if kind in TELL:
        if draw.chance(0.3) and kind in ("name", "city"):
            value = value.lower()
        tell = draw.say(OPEN + TELL[kind], v=value)
        ask = draw.say("[||||||hey, |so, |now, |and |ok, |tell me, ]" + draw.choice(ASKED[kind]) + END)
        said = SAID[kind].format(v=value)
        thing = {"city": "where you live", "age": "your age", "hobby": "your hobby"}.get(kind, f"your {kind}")
        reply = f"Nice to meet you, {value}." if kind == "name" else "I will remember that."
    else:
        person = kind in PEOPLE
        tell = draw.say(
            OPEN
            + (
                "[my {k} is called|my {k}'s name is|my {k} is|i have a {k} called|i have a {k} named] {v}[|.]"
                if person
                else "[my {k} is|my {k} is|my {k}:|remember that my {k} is|please remember my {k}:|note that my {k} is|remember: my {k} is] {v}[|.]"
            ),
            k=kind,
            v=value,
        )
        ask = draw.say(
            "[||||||hey, |so, |now, |and |ok, ]"
            + (
                "[what is|what's] [my {k}'s name|the name of my {k}|my {k} called]"
                if person
                else "[what is|what's|whats|what was|do you remember|tell me|do you know|can you tell me|remind me of] my {k}"
            )
            + END,
            k=kind,
        )
        said = f"Your {kind} is {value}." if not person else f"Your {kind} is called {value}."
        thing = f"your {kind}" if not person else f"your {kind}'s name"
        reply = "I will remember that."
    short = f"{value[0].upper()}{value[1:]}."
    return (
        Exchange(tell, reply, "Noted."),
        Exchange(ask, said, short),
        Exchange(ask, f"{NOT_TOLD} {thing}.", f"{NOT_TOLD}."),
    )


def _possession(draw: Draw) -> str:
    if draw.chance(0.7):
        return draw.choice(POSSESSIONS)
    return (
        f"{draw.choice(['favourite', 'favorite'])} {draw.choice(FAVOURITES)}"
        if draw.chance(0.6)
        else f"{draw.choice(THINGS)} number"
    )


def kinds(draw: Draw, count: int) -> list[str]:
    basic = list(TELL)
    found: list[str] = []
    while len(found) < count:
        kind = draw.choice(basic) if draw.chance(0.55) else _possession(draw)
        if all(kind.split("'")[0].replace("or", "our") != other.split("'")[0].replace("or", "our") for other in found):
            found.append(kind)
    return found


def memory(draw: Draw) -> Episode:
    """Several statements, then a question about one, a changed one or one never made."""
    chosen = kinds(draw, draw.integer(1, 4) + 1)
    parts = [told(draw, kind) for kind in chosen]
    absent = parts.pop()
    if draw.chance(0.08):
        return Episode("memory", (absent[2],))
    exchanges = [tell for tell, _, _ in parts]
    at = draw.integer(0, len(parts) - 1)
    fate = draw.integer(0, 9)
    if fate <= 1:
        return Episode("memory", (*exchanges, absent[2]))
    if fate == 2:
        tell, ask, _ = told(draw, chosen[at])
        changed = Exchange(
            draw.say("[actually, |no, |sorry, |correction: |i mean, |wait, |no wait, ]")
            + tell.user[:1].lower()
            + tell.user[1:],
            "I will remember that.",
            "Noted.",
            key="",
        )
        return Episode("memory", (*exchanges, changed, ask))
    if fate <= 4 and len(parts) >= 2:
        first, second = draw.sample(range(len(parts)), 2)
        return Episode("memory", (*exchanges, parts[first][1], parts[second][1]))
    if fate == 5 and len(exchanges) >= 2:
        one, two = exchanges[-2:]
        joined = Exchange(
            f"{one.user.rstrip('.!')} and {two.user}",
            two.answer if "Nice" not in one.answer else one.answer,
            "Noted.",
            key="",
        )
        return Episode(
            "memory", (*exchanges[:-2], joined, parts[draw.integer(max(0, len(parts) - 2), len(parts) - 1)][1])
        )
    return Episode("memory", (*exchanges, parts[at][1]))


def one_turn(draw: Draw) -> Episode:
    """A statement and a question in one message."""
    kind = kinds(draw, 1)[0]
    tell, ask, _ = told(draw, kind)
    return Episode("memory", (Exchange(f"{tell.user.rstrip('.!')}. {ask.user}", ask.answer, ask.brief),))


def remember_this(draw: Draw) -> Episode:
    """Remember X: then asked for it."""
    text = phrase(draw)
    what = draw.choice(["the number", "the word", "the code", "this", "this", "the phrase", "the password"])
    tell = draw.say("[|please |can you |i want you to ]remember {w}: {x}", w=what, x=text)
    asked = draw.say(
        "[what did i [ask|tell] you to remember|what should you remember|what were you supposed to remember|do you remember what i told you to remember|what did you have to remember]"
        + END
        if what == "this"
        else "[what is|what was|what's|tell me|do you remember] {w} [i gave you|i told you|you should remember|to remember|i asked you to remember]"
        + END,
        w=what,
    )
    return Episode(
        "memory",
        (Exchange(tell, "I will remember that.", "Noted."), Exchange(asked, f"You asked me to remember: {text}", text)),
    )


MAKERS: list[tuple[float, Maker]] = [(4.0, memory), (0.7, one_turn), (0.7, remember_this)]
