"""Fields out of a text, into JSON."""

import json
from collections.abc import Callable

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.attributes import clock, day
from scripts.demo.draw import Draw
from scripts.demo.words import COLOURS, JOBS

Value = str | int | None


def _email(draw: Draw) -> str:
    return f"{draw.word()}@{draw.word()}.{draw.choice(['com', 'org', 'net', 'io'])}"


PERSON: dict[str, tuple[Callable[[Draw], Value], tuple[str, ...]]] = {
    "name": (
        lambda d: d.full_name() if d.chance(0.6) else d.first_name(),
        ("My name is {v}", "I am {v}", "This is {v}", "Name: {v}", "{v} here"),
    ),
    "age": (lambda d: d.integer(3, 99), ("I am {v} years old", "age {v}", "{v} years old", "Age: {v}")),
    "city": (Draw.place, ("I live in {v}", "from {v}", "City: {v}", "my home is in {v}", "based in {v}")),
    "job": (lambda d: d.choice(JOBS), ("I work as a {v}", "I am a {v} by trade", "Job: {v}", "my job is {v}")),
    "email": (_email, ("my email is {v}", "write to {v}", "Email: {v}", "mail me at {v}")),
    "phone": (
        lambda d: str(d.integer(10000, 9999999)),
        ("call me on {v}", "my phone number is {v}", "Phone: {v}", "tel. {v}"),
    ),
    "company": (
        lambda d: d.word().capitalize(),
        ("I work for {v}", "Company: {v}", "I am with {v}", "my company is {v}"),
    ),
}
ORDER: dict[str, tuple[Callable[[Draw], Value], tuple[str, ...]]] = {
    "product": (
        lambda d: f"{d.choice(COLOURS)} {d.thing()}" if d.chance(0.4) else d.thing(),
        ("I would like to order a {v}", "Product: {v}", "the item is a {v}", "for a {v}"),
    ),
    "quantity": (
        lambda d: d.integer(1, 99),
        ("the quantity is {v}", "Quantity: {v}", "I need {v} of them", "{v} pieces"),
    ),
    "price": (lambda d: d.number(4), ("the price is {v} euros", "Price: {v}", "it costs {v} dollars", "at {v} euros")),
    "customer": (lambda d: d.full_name(), ("the customer is {v}", "Customer: {v}", "ordered by {v}", "for {v}")),
    "date": (day, ("on {v}", "Date: {v}", "the date is {v}", "it was sent on {v}")),
    "order": (Draw.code, ("order number {v}", "Order: {v}", "the order is {v}")),
    "city": (Draw.place, ("deliver it to {v}", "City: {v}", "ship to {v}", "it goes to {v}")),
}
MEETING: dict[str, tuple[Callable[[Draw], Value], tuple[str, ...]]] = {
    "title": (
        lambda d: f"{d.word()} {d.choice(['meeting', 'review', 'call', 'lunch', 'workshop'])}",
        ("the {v} is planned", "Title: {v}", "we have the {v}", "come to the {v}"),
    ),
    "date": (day, ("on {v}", "Date: {v}", "it takes place on {v}")),
    "time": (clock, ("at {v}", "Time: {v}", "it starts at {v}")),
    "place": (Draw.place, ("in {v}", "Place: {v}", "we meet in {v}")),
    "host": (lambda d: d.full_name(), ("hosted by {v}", "Host: {v}", "{v} invites you")),
    "guests": (lambda d: d.integer(2, 300), ("{v} guests will come", "Guests: {v}", "we expect {v} guests")),
}
ASK = [
    "[Extract|Get|Find|Pull out] {f} [as JSON|in JSON|into JSON|and return JSON][:| from this text:| from:] {t}",
    "[Extract|Get|Give me] {f} as JSON from[:| this text:| the text:|\n]{t}",
    "{t}\n\n[Extract|Return|Give me|Get] {f} as JSON.",
    "Return a JSON object with [the keys|the fields|keys|] {f}[:| for:| from:] {t}",
    "[extract|get|return] json with {f}: {t}",
    "[Turn|Convert|Put] this [into|to] JSON with [keys|fields] {f}: {t}",
    "Text: {t}\nFields: {f}\nJSON:",
    "Fields: {f}\nText: {t}",
    "{t} [Write|Give] {f} as JSON.",
    "JSON with {f}: {t}",
]
SYSTEM = [
    "Extract {f} from the user's text as JSON.",
    "Return a JSON object with the keys {f}.",
    "You extract data. Answer in JSON with {f}.",
    "Answer only with JSON. Fields: {f}.",
]


def _listed(draw: Draw, keys: list[str]) -> str:
    quoted = [f'"{key}"' for key in keys] if draw.chance(0.2) else keys
    if draw.chance(0.3) or len(keys) == 1:
        return ", ".join(quoted)
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


def _record(draw: Draw) -> tuple[str, dict[str, Value]]:
    """A text and all that stands in it, by key."""
    kind = draw.integer(0, 4)
    if kind == 4:
        keys = list(dict.fromkeys(draw.word() if draw.chance(0.5) else draw.thing() for _ in range(draw.integer(1, 5))))
        values: dict[str, Value] = {}
        parts = []
        for key in keys:
            values[key] = draw.choice(
                [
                    draw.first_name,
                    draw.place,
                    lambda: draw.number(4),
                    draw.word,
                    lambda: draw.integer(0, 99),
                    draw.full_name,
                ]
            )()
            parts.append(
                draw.choice(["The {k} is {v}", "{k}: {v}", "the {k} was {v}", "its {k} is {v}"]).format(
                    k=key, v=values[key]
                )
            )
    else:
        table = draw.choice([PERSON, PERSON, ORDER, MEETING])
        keys = draw.sample(list(table), draw.integer(1, min(5, len(table))))
        values = {key: table[key][0](draw) for key in keys}
        parts = [draw.choice(table[key][1]).format(v=values[key]) for key in keys]
    joint = draw.choice([". ", ". ", ", ", "; ", "\n"])
    text = joint.join(part[:1].upper() + part[1:] if joint in (". ", "\n") else part for part in parts)
    return text[:1].upper() + text[1:] + draw.choice([".", ".", ""]), values


def extraction(draw: Draw) -> Episode:
    text, values = _record(draw)
    keys = draw.sample(list(values), draw.integer(1, len(values)))
    if draw.chance(0.15):
        other = draw.choice([*PERSON, *ORDER, *MEETING])
        if other not in values:
            keys.insert(draw.integer(0, len(keys)), other)
    answer = json.dumps({key: values.get(key) for key in keys}, ensure_ascii=False)
    fields = _listed(draw, keys)
    if draw.chance(0.25):
        return Episode(
            "json", (Exchange(text, answer, key="", fixed=True),), system=draw.choice(SYSTEM).format(f=fields)
        )
    return Episode("json", (Exchange(draw.say(ASK, noise=False, f=fields, t=text), answer, key="", fixed=True),))


MAKERS: list[tuple[float, Maker]] = [(5.0, extraction)]
