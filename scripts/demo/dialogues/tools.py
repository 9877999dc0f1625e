"""Tools: choose one of those offered, fill its arguments, use its result; ask for what is missing; leave them alone otherwise."""

import json

from scripts.demo.dialogue import Episode, Exchange, Maker, ToolCall
from scripts.demo.dialogues.passages import passage
from scripts.demo.dialogues.toolbox import GROUPS, KNOWN, Tool
from scripts.demo.draw import Draw
from scripts.demo.words import THINGS, TOPICS

HI = "[||||||hi, |hey, |please |can you |could you |ok, |now ]"
Q = "[?|?||| please]"
GET_VERBS = {
    "get": "get",
    "find": "find",
    "fetch": "fetch",
    "look_up": "look up",
    "check": "check",
    "read": "read",
    "show": "show me",
    "list": "list",
    "count": "count",
    "query": "query",
    "load": "load",
}
DO_VERBS = {
    "start": "start",
    "stop": "stop",
    "send": "send",
    "book": "book",
    "order": "order",
    "open": "open",
    "close": "close",
    "create": "create",
    "delete": "delete",
    "cancel": "cancel",
    "update": "update",
    "set": "set",
    "add": "add",
    "remove": "remove",
    "reset": "reset",
    "buy": "buy",
    "print": "print",
    "move": "move",
}
PARAMETERS = [
    "city",
    "name",
    "id",
    "date",
    "number",
    "user",
    "room",
    "code",
    "place",
    "country",
    "year",
    "level",
    "amount",
    "region",
    "team",
    "customer",
    "title",
    "color",
    "size",
    "key",
    "host",
    "page",
    "floor",
    "limit",
    "order_id",
    "user_id",
    "file_name",
    "project",
    "group",
]
INTEGERS = {
    "id",
    "number",
    "year",
    "level",
    "amount",
    "room",
    "size",
    "page",
    "floor",
    "limit",
    "age",
    "user_id",
    "sides",
    "minutes",
    "people",
    "a",
    "b",
}


def _value(draw: Draw, key: str, kind: str) -> object:
    if kind in ("integer", "number"):
        return draw.number(4)
    if key in ("expression",):
        return draw.choice(
            [
                f"{draw.number(5)} {draw.choice(['*', '/', '+', '-'])} {draw.number(4)}",
                f"{draw.number(4)}{draw.choice('*/+-')}{draw.number(4)}",
                f"({draw.number(2)} + {draw.number(2)}) * {draw.number(2)}",
            ]
        )
    if key in ("city", "place", "region", "country", "location"):
        return draw.place()
    if key in ("name", "user", "customer", "artist"):
        return draw.choice([draw.first_name, draw.full_name])()
    if key in ("to",):
        return draw.choice([draw.first_name, lambda: f"{draw.word()}@{draw.word()}.com"])()
    if key in ("query", "subject", "title", "text"):
        return draw.choice(
            [
                lambda: draw.choice(TOPICS),
                draw.thing,
                lambda: f"{draw.word()} {draw.thing()}",
                lambda: f"{draw.thing()} of {draw.place()}",
            ]
        )()
    if key in ("source", "target"):
        return draw.choice(
            ["euros", "dollars", "pounds", "yen", "francs", "rupees", "EUR", "USD", "GBP", "JPY", "CHF", "crowns"]
        )
    if key == "language":
        return draw.choice(["German", "French", "Spanish", "Italian", "Dutch", "Polish", "Swedish", "Japanese"])
    if key in ("time",):
        return f"{draw.integer(0, 23)}:{draw.integer(0, 59):02}"
    if key in ("date",):
        return f"{draw.integer(2000, 2040)}-{draw.integer(1, 12):02}-{draw.integer(1, 28):02}"
    if key in ("code", "order_id", "key", "symbol"):
        return draw.code()
    return draw.choice([draw.word, lambda: draw.word().capitalize(), draw.code, draw.thing])()


def unseen_tool(draw: Draw) -> Tool:
    """A tool with a made-up name, described in words that the user will use too."""
    get = draw.chance(0.6)
    verbs = GET_VERBS if get else DO_VERBS
    verb = draw.choice(list(verbs))
    noun = draw.choice(
        [
            draw.word,
            draw.word,
            draw.thing,
            lambda: f"{draw.word()} {draw.choice(THINGS)}",
            lambda: f"{draw.choice(THINGS)} {draw.word()}",
        ]
    )()
    joined = noun.replace(" ", "_")
    style = draw.integer(0, 9)
    name = f"{verb}_{joined}"
    if style == 0:
        name = joined
    elif style == 1:
        name = "".join(part if index == 0 else part.capitalize() for index, part in enumerate(name.split("_")))
    elif style == 2:
        name = f"{joined}_{verb}"
    keys = [
        draw.choice(PARAMETERS) if draw.chance(0.75) else draw.word()
        for _ in range(draw.choice([0, 1, 1, 1, 1, 2, 2, 3]))
    ]
    parameters = {
        key: (
            "integer"
            if (key in INTEGERS and draw.chance(0.8)) or (key not in PARAMETERS and draw.chance(0.3))
            else "string"
        )
        for key in keys
    }
    article = draw.choice(["the", "the", "a"])
    first = next(iter(parameters), "")
    purpose = f" {draw.choice(['of', 'for', 'by'])} a {first.replace('_', ' ')}" if first and draw.chance(0.6) else ""
    spoken = verbs[verb]
    description = f"{verb.replace('_', ' ').capitalize()} {article} {noun}{purpose}" + draw.choice([".", ".", ""])
    if not parameters:
        asks = (
            f"{spoken} {{the}} {noun}",
            f"{spoken} {{the}} {noun} now",
            f"i want to {spoken.replace('show me', 'see')} {{the}} {noun}",
        )
    elif len(parameters) == 1:
        asks = (
            f"{spoken} {{the}} {noun} [for|of|with] {{{first}}}",
            f"{spoken} {{the}} {noun} [for|with|of] {first.replace('_', ' ')} {{{first}}}",
            f"{spoken} {{the}} {noun}: {{{first}}}",
            f"{{{first}}}: {spoken} {{the}} {noun}",
        )
        if get:
            asks += (f"[what is|what's|tell me] the {noun} [of|for] {{{first}}}", f"{noun} [of|for] {{{first}}}")
    else:
        rest = " and ".join(f"{key.replace('_', ' ')} {{{key}}}" for key in parameters)
        listed = ", ".join(f"{key.replace('_', ' ')} {{{key}}}" for key in parameters)
        asks = (
            f"{spoken} {{the}} {noun} [with|for] {rest}",
            f"{spoken} {{the}} {noun}, {listed}",
            f"{spoken} {{the}} {noun}: {listed}",
        )
    optional = (
        {
            key: draw.choice(["string", "integer"])
            for key in draw.sample(PARAMETERS, draw.integer(1, 2))
            if key not in parameters
        }
        if draw.chance(0.15)
        else {}
    )
    return Tool(
        name,
        description,
        parameters,
        tuple(ask.replace("{the}", draw.choice(["the", "a", "my", "the"])) for ask in asks),
        "get" if get else "do",
        optional,
    )


def result(draw: Draw, tool: Tool) -> tuple[str, str]:
    """What the tool returned, and the answer that tells it."""
    kind = draw.integer(0, 9)
    if kind == 0:
        reason = draw.choice(
            [
                "not found",
                "timeout",
                "access denied",
                f"no such {draw.thing()}",
                f"{draw.word()} is offline",
                "invalid argument",
                "service unavailable",
            ]
        )
        return json.dumps({"error": reason}), f"The tool failed: {reason}."
    if kind == 1 and draw.chance(0.4):
        text = passage(draw, 1).text
        return text, text
    if kind <= 2:
        value = draw.choice(
            [
                lambda: str(draw.number(5)),
                lambda: (
                    f"{draw.number(2)} degrees and {draw.choice(['sunny', 'rain', 'snow', 'wind', 'cloudy', 'fog'])}"
                ),
                lambda: f"{draw.integer(0, 23)}:{draw.integer(0, 59):02}",
                draw.place,
                draw.full_name,
                lambda: f"{draw.thing()} {draw.word()}",
            ]
        )()
        return value, f"The result is {value}."
    if kind == 3 and tool.kind == "do":
        word = draw.choice(["ok", "done", "success"])
        return draw.choice([word, json.dumps({"status": word}), json.dumps({"ok": True})]), "Done."
    if kind == 4:
        values: list[object] = [
            draw.choice([draw.first_name, draw.place, draw.thing, draw.word])() for _ in range(draw.integer(1, 4))
        ]
        return json.dumps(values), f"The results are {', '.join(map(str, values))}." if len(
            values
        ) > 1 else f"The result is {values[0]}."
    if kind == 5:
        value = draw.choice([lambda: draw.number(5), lambda: draw.integer(0, 9999) / 100])()
        return json.dumps({"result": value}), f"The result is {value}."
    keys = list(
        dict.fromkeys(
            draw.choice(
                [
                    "temperature",
                    "sky",
                    "status",
                    "price",
                    "count",
                    "owner",
                    "city",
                    "date",
                    "name",
                    "state",
                    "total",
                    "place",
                    "level",
                    "wind",
                    "size",
                    "time",
                    "unit",
                    "rate",
                    "phone",
                    draw.word(),
                    draw.thing(),
                ]
            )
            for _ in range(draw.integer(1, 3))
        )
    )
    table = {
        key: draw.choice(
            [
                lambda: draw.number(4),
                draw.word,
                draw.place,
                lambda: draw.choice(["open", "closed", "ready", "late", "sent", "sunny", "rain", "new", "old"]),
                lambda: draw.integer(0, 999) / 10,
            ]
        )()
        for key in keys
    }
    return json.dumps(table), ", ".join(f"{key}: {value}" for key, value in table.items()) + "."


def use(draw: Draw, tool: Tool) -> Exchange:
    values = {key: _value(draw, key, kind) for key, kind in tool.parameters.items()}
    asked = draw.say(HI + draw.choice(tool.asks) + Q, **values)
    returned, answer = result(draw, tool)
    return Exchange(asked, answer, answer, key="", calls=(ToolCall(tool.name, values, returned),))


def _rivals(tool: Tool, other: Tool) -> bool:
    """Whether a question could be meant for either."""
    group = GROUPS.get(tool.name)
    return (
        tool.name == other.name
        or tool.description == other.description
        or (group is not None and group == GROUPS.get(other.name))
    )


def offered(draw: Draw, known: bool, count: int) -> list[Tool]:
    """Distinct tools; the first is of the kind wanted, the others of either kind."""
    chosen: list[Tool] = []
    while len(chosen) < count:
        wanted = known if not chosen else draw.chance(0.5)
        tool = draw.choice(KNOWN) if wanted else unseen_tool(draw)
        if not any(_rivals(tool, other) for other in chosen):
            chosen.append(tool)
    return chosen


def _episode(draw: Draw, known: bool, before: int) -> Episode:
    """`before`: the uses before the one that is asked for last."""
    tools = offered(draw, known, draw.choice([1, 2, 2, 3, 3, 4]))
    wanted = tools[0]
    exchanges = [use(draw, draw.choice(tools)) for _ in range(before)]
    if wanted.parameters and draw.chance(0.08):
        missing = next(iter(wanted.parameters))
        verb = wanted.description.rstrip(".").lower()
        asked = draw.say(HI + verb.split(" of a ")[0].split(" for a ")[0].split(" by a ")[0] + Q)
        exchanges.append(
            Exchange(
                asked,
                f"Please tell me the {missing.replace('_', ' ')}.",
                f"Please tell me the {missing.replace('_', ' ')}.",
                key="",
            )
        )
    else:
        exchanges.append(use(draw, wanted))
    draw.rng.shuffle(tools)
    return Episode(
        "tools" if known else "tools, unseen", tuple(exchanges), tools=tuple(tool.schema(draw) for tool in tools)
    )


def known_tools(draw: Draw) -> Episode:
    return _episode(draw, known=True, before=draw.choice([0, 0, 0, 1, 2]))


def unseen_tools(draw: Draw) -> Episode:
    return _episode(draw, known=False, before=draw.choice([0, 0, 0, 1, 2]))


def many_uses(draw: Draw) -> Episode:
    """More is learned from as many tokens: the tools' descriptions are most of a conversation with one use."""
    return _episode(draw, known=False, before=draw.integer(2, 5))


MAKERS: list[tuple[float, Maker]] = [(2.0, known_tools), (2.0, unseen_tools), (3.0, many_uses)]
