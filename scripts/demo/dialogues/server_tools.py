"""The tools that weft itself runs, offered as a served turn offers them: sums, dates and short Python programs.

What a tool returns stands in the prompt as the orchestrator puts it there: the calculator's and the dates' words as they
are, a program's output between tags that mark it as data.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime

from scripts.demo.dialogue import Episode, Exchange, Maker, ToolCall
from scripts.demo.dialogues.toolbox import GROUPS, KNOWN, Schema
from scripts.demo.dialogues.tools import HI, unseen_tool
from scripts.demo.draw import Draw
from scripts.demo.words import ANIMALS, FOODS, THINGS
from serving.orchestrator.retrieval.file_search import FileSearch
from serving.orchestrator.retrieval.search import Found
from serving.orchestrator.tools.calculator import Calculator
from serving.orchestrator.tools.dates import Dates
from serving.orchestrator.tools.registry import Tool, ToolResult, ToolScope

ASK = "[what is|what's|whats|compute|calculate|how much is|tell me|work out|]"
END = "[?|?||| please]"
SIGNS = {
    "+": "[ plus |+| + ]",
    "-": "[ minus |-| - ]",
    "*": "[ times | multiplied by |*| * | x ]",
    "/": "[ divided by |/| / ]",
}
ZONES = {
    "Berlin": "Europe/Berlin",
    "London": "Europe/London",
    "Paris": "Europe/Paris",
    "Tokyo": "Asia/Tokyo",
    "New York": "America/New_York",
    "Sydney": "Australia/Sydney",
}
UNITS = ("days", "weeks", "months", "years")


async def _no_files(*_: object) -> list[Found]:
    return []


def _schema(tool: Tool) -> Schema:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _code_interpreter() -> Schema:
    """In the server's words; its class needs a sandbox, which a machine that only trains may lack."""
    code = {"type": "string", "description": "the program; print what you want to see"}
    description = (
        "Runs a Python program (standard library, no network) and gives back what it prints. Files of the "
        "conversation are in the working folder; files that the program writes there are kept. Variables are not "
        "kept from one call to the next. It has 10 seconds."
    )
    parameters = {"type": "object", "properties": {"code": code}, "required": ["code"], "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": "code_interpreter", "description": description, "parameters": parameters},
    }


SCHEMAS: dict[str, Schema] = {
    "calculator": _schema(Calculator()),
    "dates": _schema(Dates()),
    "code_interpreter": _code_interpreter(),
    "file_search": _schema(FileSearch(_no_files)),
}
_SCOPE = ToolScope(tenant="", user="", request_id="", deadline=math.inf)
RIVALS = {"calculator": "sums", "dates": "time", "file_search": "search", "code_interpreter": "code"}


def _ran(tool: Calculator | Dates, arguments: dict[str, object]) -> ToolResult:
    return asyncio.run(tool.run(arguments, _SCOPE))


def beside(draw: Draw, name: str) -> tuple[Schema, ...]:
    """The tool's schema with none, one or two others: the server's own first, as it lists them."""
    own, clients = [name], []
    if draw.chance(0.15):
        own += draw.sample([other for other in SCHEMAS if other != name], draw.choice([1, 1, 2]))
        draw.rng.shuffle(own)
    groups = {RIVALS[other] for other in own}
    if draw.chance(0.3):
        client = draw.choice(KNOWN) if draw.chance(0.5) else unseen_tool(draw)
        if GROUPS.get(client.name) not in groups:
            clients.append(client.schema(draw))
    return (*(SCHEMAS[other] for other in own), *clients)


def _numbers(draw: Draw, most: int = 5) -> list[int]:
    return [draw.number(3) for _ in range(draw.integer(2, most))]


def _listed(draw: Draw, values: list[int]) -> str:
    text = ", ".join(map(str, values))
    return text if draw.chance(0.6) else " and ".join(text.rsplit(", ", 1))


def _plain_sum(draw: Draw) -> tuple[str, str]:
    """How it is asked for, and the expression: copied where it is typed in signs, else put into signs."""
    sign = draw.choice(list(SIGNS))
    a, b = draw.number(6), draw.number(5)
    typed = draw.expand(SIGNS[sign])
    asked = f"{a}{typed}{b}"
    return asked, asked if typed.strip() == sign else f"{a} {sign} {b}"


def _worded_sum(draw: Draw) -> tuple[str, str]:
    a, b = draw.number(6), draw.number(5)
    return draw.choice(
        [
            (f"the sum of {a} and {b}", f"{a} + {b}"),
            (f"the product of {a} and {b}", f"{a} * {b}"),
            (f"the difference of {a} and {b}", f"{a} - {b}"),
        ]
    )


def _chain(draw: Draw) -> tuple[str, str]:
    a, b, c = (draw.number(4) for _ in range(3))
    text = draw.choice([f"{a} + {b} * {c}", f"({a} + {b}) * {c}", f"{a} * {b} - {c}", f"({a} - {b}) / {c + 1}"])
    return text, text


def _function(draw: Draw) -> tuple[str, str]:
    values, n = _numbers(draw), draw.number(3)
    listed, given = _listed(draw, values), ", ".join(map(str, values))
    return draw.choice(
        [
            (f"the square root of {n * n}", f"sqrt({n * n})"),
            (f"the square root of {n}", f"sqrt({n})"),
            (f"{n % 30} to the power of {n % 7 + 2}", f"{n % 30} ** {n % 7 + 2}"),
            (f"{n % 100}% of {values[0]}", f"{values[0]} * {n % 100} / 100"),
            (f"{n % 100} percent of {values[0]}", f"{values[0]} * {n % 100} / 100"),
            (f"the average of {listed}", f"mean({given})"),
            (f"the mean of {listed}", f"mean({given})"),
            (f"the sum of {listed}", f"sum({given})" if len(values) > 2 else f"{values[0]} + {values[1]}"),
            (f"the factorial of {n % 13}", f"factorial({n % 13})"),
        ]
    )


def calculation(draw: Draw) -> Exchange:
    asked, expression = draw.rng.choices([_plain_sum, _worded_sum, _chain, _function], [5, 1, 1, 3])[0](draw)
    if draw.chance(0.02):
        asked = expression = f"{draw.number(5)} / 0"
    text = " ".join(draw.say(f"{HI}{ASK} {{x}}{END}", x=asked).split())
    result = _ran(Calculator(), {"expression": expression})
    answer = (
        f"The tool failed: {result.text.removeprefix('Error: ')}."
        if result.is_error
        else f"The result is {result.text}."
    )
    call = ToolCall("calculator", {"expression": expression}, result.text)
    return Exchange(text, answer, answer, key=f"calculator {expression}", calls=(call,))


def _day(draw: Draw) -> str:
    return f"{draw.integer(1950, 2060)}-{draw.integer(1, 12):02}-{draw.integer(1, 28):02}"


def date_question(draw: Draw) -> Exchange:
    """A question on dates; the moment of `now` is drawn too."""
    now = datetime(draw.integer(2024, 2034), draw.integer(1, 12), draw.integer(1, 28), draw.integer(0, 23), tzinfo=UTC)
    tool = Dates(lambda: now.replace(minute=draw.integer(0, 59)))
    kind, first, second = draw.integer(0, 4), _day(draw), _day(draw)
    count, unit, city = draw.integer(1, 200), draw.choice(UNITS), draw.choice(list(ZONES))
    key = None
    if kind == 0:
        arguments: dict[str, object] = {"operation": "now"}
        asked = "[what is the date|what day is it|what's the date|what date is it] [today|]"
    elif kind == 1:
        arguments = dict[str, object](operation="now")
        place = ""
        if draw.chance(0.6):
            arguments["timezone"], place = ZONES[city], f" in {city}"
        asked = f"[what time is it|what's the time|tell me the time|what is the time]{place}[ now|]"
    elif kind == 2:
        arguments = {"operation": "add", "date": first, unit: count}
        asked = f"[what is the date|which date is|what date is|what day is] {count} {unit} after {first}"
        if draw.chance(0.3):
            arguments[unit] = -count
            asked = asked.replace(" after ", " before ")
    elif kind == 3:
        arguments = {"operation": "between", "date": first, "until": second}
        asked = (
            f"[how many days are|how many days are there|how many days] [between {first} and|from {first} to] {second}"
        )
    else:
        arguments = {"operation": "weekday", "date": first}
        asked = f"[what day of the week|which weekday|what weekday|on what day] [is|was] {first}"
    result = _ran(tool, arguments)
    day, _, rest = result.text.partition(" (")
    weekday = rest.split(",")[0]
    if kind == 1:
        answer = f"It is {day[11:16]}."
    elif kind == 3:
        answer = f"It is {result.text.split(' by ')[0]}."
    elif kind == 4:
        answer = f"{first} is a {weekday}."
    else:
        answer = f"{'Today' if kind == 0 else 'That'} is {weekday}, {day[:10]}."
    key = "" if kind < 2 else f"dates {arguments}"
    text = " ".join(draw.say(f"{HI}{asked}{END}").split())
    return Exchange(text, answer, answer, key=key, calls=(ToolCall("dates", arguments, result.text),))


def _word(draw: Draw) -> str:
    return draw.word() if draw.chance(0.5) else draw.choice([*THINGS, *ANIMALS, *FOODS])


def _on_list(draw: Draw) -> tuple[str, str, str]:
    """What is asked for, the program, and what it prints."""
    values = _numbers(draw, 6)
    asked, name, value = draw.choice(
        [
            ("[sort|put in order]", "sorted", sorted(values)),
            ("[sum|add up|add]", "sum", sum(values)),
            ("find the largest of", "max", max(values)),
            ("find the smallest of", "min", min(values)),
            ("count", "len", len(values)),
        ]
    )
    return f"{draw.expand(asked)} {_listed(draw, values)}", f"print({name}({values}))", str(value)


def _on_range(draw: Draw) -> tuple[str, str, str]:
    n = draw.integer(2, 12)
    upto = range(1, n + 1)
    return draw.choice(
        [
            (f"count to {n}", f"print(list(range(1, {n} + 1)))", str([*upto])),
            (f"print the squares up to {n}", f"print([n ** 2 for n in range(1, {n} + 1)])", str([i * i for i in upto])),
            (f"sum the numbers from 1 to {n * 50}", f"print(sum(range(1, {n * 50} + 1)))", str(sum(range(n * 50 + 1)))),
            (f"compute the factorial of {n}", f"import math\nprint(math.factorial({n}))", str(math.factorial(n))),
            (
                f"print the numbers from 1 to {n % 5 + 2} in a loop",
                f"for n in range(1, {n % 5 + 2} + 1):\n    print(n)",
                "\n".join(map(str, range(1, n % 5 + 3))),
            ),
        ]
    )


def _on_word(draw: Draw) -> tuple[str, str, str]:
    word = _word(draw)
    letter = draw.choice(word)
    return draw.choice(
        [
            (f"count the letters in {word}", f"print(len('{word}'))", str(len(word))),
            (f"reverse {word}", f"print('{word}'[::-1])", word[::-1]),
            (f"write {word} in capitals", f"print('{word}'.upper())", word.upper()),
            (f"count the letter {letter} in {word}", f"print('{word}'.count('{letter}'))", str(word.count(letter))),
        ]
    )


def _expression(draw: Draw) -> tuple[str, str, str]:
    a, b = draw.number(4), draw.number(3)
    sign, value = draw.choice([("+", a + b), ("*", a * b), ("-", a - b)])
    return f"[compute|calculate|work out] {a} {sign} {b}", f"print({a} {sign} {b})", str(value)


def _copied(draw: Draw) -> tuple[str, str, str]:
    """A program that the user wrote, run as it is."""
    _, program, printed = draw.choice([_on_list, _on_range, _on_word, _expression])(draw)
    if draw.chance(0.15):
        name = draw.word()
        return (
            f"{draw.choice(['run', 'execute'])}: print({name})",
            f"print({name})",
            f"!NameError: name '{name}' is not defined",
        )
    return f"{draw.choice(['run', 'run this', 'execute', 'run the program'])}: {program}", program, printed


def program(draw: Draw) -> Exchange:
    kinds: list[Callable[[Draw], tuple[str, str, str]]] = [_on_list, _on_range, _on_word, _expression, _copied]
    asked, code, printed = draw.rng.choices(kinds, [3, 2, 3, 1, 3])[0](draw)
    if code not in asked:
        lead = "[use|run|write] [python|code|a program|a python program] to {x}|{x} [with|in|using] [python|code]"
        asked = draw.say(f"{HI}[{lead}]{END}", x=draw.expand(asked)) if "\n" not in asked else asked
    if printed.startswith("!"):
        marks = "^" * (len(code) - 7)
        trace = f'File "/tmp/main.py", line 1, in <module>\n    {code}\n          {marks}\n{printed[1:]}'
        trace = f"stderr:\nTraceback (most recent call last):\n  {trace}\nexit code 1"
        answer = f"The program failed: {printed[1:]}."
        printed = trace
    else:
        answer = f"The program printed {printed}." if "\n" not in printed else f"The program printed:\n{printed}"
    result = f'<result id="code_interpreter">\n{printed}\n</result>'
    call = ToolCall("code_interpreter", {"code": code}, result)
    return Exchange(asked, answer, answer, key=f"code {code}", calls=(call,))


def _maker(name: str, exchange: Callable[[Draw], Exchange]) -> Maker:
    def make(draw: Draw) -> Episode:
        exchanges = tuple(exchange(draw) for _ in range(draw.choice([1, 1, 1, 1, 2])))
        return Episode("built-in tools", exchanges, tools=beside(draw, name))

    return make


calculations = _maker("calculator", calculation)
date_questions = _maker("dates", date_question)
programs = _maker("code_interpreter", program)

MAKERS: list[tuple[float, Maker]] = [(3.0, calculations), (2.0, date_questions), (3.0, programs)]
