"""The tools with known names, and the schema that a request offers them by."""

from dataclasses import dataclass, field

from scripts.demo.draw import Draw
from scripts.demo.words import THINGS

Schema = dict[str, object]


@dataclass(frozen=True)
class Tool:
    """One offered function; `asks` are wordings with a slot for each parameter, all of which are required."""

    name: str
    description: str
    parameters: dict[str, str]
    asks: tuple[str, ...]
    kind: str = "get"
    optional: dict[str, str] = field(default_factory=dict)

    def schema(self, draw: Draw) -> Schema:
        described = draw.chance(0.3)
        properties: dict[str, object] = {}
        for key, kind in {**self.parameters, **self.optional}.items():
            entry: dict[str, object] = {"type": kind}
            if described:
                spoken = key.replace("_", " ")
                entry["description"] = draw.choice(
                    [
                        f"the {spoken}",
                        f"The {spoken}.",
                        f"The {spoken}, e.g. {draw.word().capitalize()}",
                        f"{spoken} to use",
                    ]
                )
            if key in self.optional and kind == "string" and draw.chance(0.6):
                entry["enum"] = (
                    [draw.choice([draw.word(), *THINGS]) for _ in range(draw.integer(2, 3))]
                    if key != "unit"
                    else ["celsius", "fahrenheit"]
                )
            properties[key] = dict(sorted(entry.items())) if draw.chance(0.3) else entry
        parameters: dict[str, object] = {"type": "object", "properties": properties}
        if self.optional or draw.chance(0.8):
            parameters["required"] = list(self.parameters)
        if draw.chance(0.1):
            parameters["additionalProperties"] = False
        if draw.chance(0.2):
            parameters = dict(sorted(parameters.items()))
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


# Tools of a group could answer the same question: they are not offered together.
GROUPS = {
    "get_weather": "weather",
    "get_current_weather": "weather",
    "get_temperature": "weather",
    "get_current_time": "time",
    "get_time": "time",
    "get_date": "time",
    "calculator": "sums",
    "calculate": "sums",
    "add_numbers": "sums",
    "multiply": "sums",
    "search": "search",
    "search_docs": "search",
    "web_search": "search",
    "lookup_word": "search",
}
KNOWN = [
    Tool(
        "get_weather",
        "Get the weather in a city.",
        {"city": "string"},
        (
            "[what is|what's|how is|hows] the weather [like |]in {city}",
            "[is it|will it be] [raining|sunny|cold|warm] in {city}",
            "weather in {city}",
            "get the weather in {city}",
            "tell me the weather for {city}",
        ),
    ),
    Tool(
        "get_weather",
        "Get the current weather for a location.",
        {"location": "string"},
        (
            "[what is|what's|how is|whats] the weather [like |][today |]in {location}",
            "weather in {location}",
            "[is it|will it be] [hot|cold|raining|sunny] in {location}",
        ),
        "get",
        {"unit": "string"},
    ),
    Tool(
        "get_current_weather",
        "Get the current weather in a given location",
        {"location": "string"},
        (
            "[what is|what's|how is|whats] the weather [like |][today |]in {location}",
            "current weather in {location}",
            "[how hot|how cold|how warm] is it in {location}",
        ),
        "get",
        {"unit": "string"},
    ),
    Tool(
        "get_temperature",
        "Get the temperature in a city.",
        {"city": "string"},
        (
            "[what is|what's|whats] the temperature in {city}",
            "[how hot|how cold|how warm] is it in {city}",
            "temperature in {city}",
        ),
    ),
    Tool(
        "get_current_time",
        "Get the current time.",
        {},
        ("what time is it [now|]", "[what is|what's|tell me] the [time|current time]", "time"),
    ),
    Tool(
        "get_time",
        "Get the current time in a city.",
        {"city": "string"},
        (
            "what time is it in {city}",
            "[what is|what's|tell me] the time in {city}",
            "time in {city}",
            "current time in {city}",
        ),
    ),
    Tool(
        "get_date",
        "Get today's date.",
        {},
        ("what [is the date|day is it|date is it] [today|]", "[what is|what's] today's date", "[tell me|get] the date"),
    ),
    Tool(
        "calculator",
        "Compute an arithmetic expression.",
        {"expression": "string"},
        ("[what is|compute|calculate|what's] {expression}", "{expression}", "how much is {expression}"),
    ),
    Tool(
        "calculate",
        "Evaluate an arithmetic expression.",
        {"expression": "string"},
        ("[what is|compute|calculate|what's] {expression}", "{expression}", "how much is {expression}"),
    ),
    Tool(
        "search",
        "Search the documents.",
        {"query": "string"},
        (
            "search for {query}",
            "[find|look up|search] {query}",
            "what do the documents say about {query}",
            "[search|look] [in the documents|] for {query}",
        ),
    ),
    Tool(
        "search_docs",
        "Search weft's documentation.",
        {"query": "string"},
        ("search the docs for {query}", "look up {query} in the docs", "[find|search] {query} in the documentation"),
    ),
    Tool(
        "web_search",
        "Search the web.",
        {"query": "string"},
        ("search the web for {query}", "[google|look up] {query}", "[find|search] {query} [online|on the web]"),
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money.",
        {"amount": "number", "source": "string", "target": "string"},
        (
            "convert {amount} {source} to {target}",
            "how much is {amount} {source} in {target}",
            "{amount} {source} in {target}",
        ),
    ),
    Tool(
        "send_email",
        "Send an email.",
        {"to": "string", "subject": "string"},
        (
            "send an email to {to} with [the |]subject {subject}",
            "email {to} about {subject}",
            "write to {to} with subject {subject}",
        ),
    ),
    Tool(
        "send_message",
        "Send a message to a person.",
        {"name": "string", "text": "string"},
        ("send {name} [the|a] message: {text}", "[tell|message] {name}: {text}", "write to {name}: {text}"),
    ),
    Tool(
        "set_timer",
        "Set a timer.",
        {"minutes": "integer"},
        (
            "set a timer for {minutes} minutes",
            "[start|make] a timer of {minutes} minutes",
            "timer {minutes} minutes",
            "{minutes} minutes timer",
        ),
        "do",
    ),
    Tool(
        "set_alarm",
        "Set an alarm.",
        {"time": "string"},
        ("set an alarm for {time}", "wake me at {time}", "alarm at {time}"),
        "do",
    ),
    Tool(
        "book_table",
        "Book a table in a restaurant.",
        {"restaurant": "string", "people": "integer"},
        ("book a table for {people} at {restaurant}", "[reserve|get] a table at {restaurant} for {people} people"),
        "do",
    ),
    Tool(
        "get_stock_price",
        "Get the price of a stock.",
        {"symbol": "string"},
        ("[what is|what's] the [stock price|price] of {symbol}", "stock price of {symbol}", "how is {symbol} doing"),
    ),
    Tool(
        "create_ticket",
        "Create a support ticket.",
        {"title": "string"},
        ("create a ticket: {title}", "[open|make|file] a ticket [titled|called|about] {title}"),
        "do",
    ),
    Tool(
        "get_order",
        "Look up an order by its number.",
        {"order_id": "string"},
        (
            "where is [my |]order {order_id}",
            "[look up|find|check|get] order {order_id}",
            "[what is|what's] the status of order {order_id}",
        ),
    ),
    Tool(
        "get_user",
        "Get a user by name.",
        {"name": "string"},
        ("[get|find|look up] [the |]user {name}", "who is [the |]user {name}"),
    ),
    Tool(
        "play_music",
        "Play music of an artist.",
        {"artist": "string"},
        ("play [some |][music by |songs by |]{artist}", "[i want|i'd like] to hear {artist}"),
        "do",
    ),
    Tool(
        "add_numbers",
        "Add two numbers.",
        {"a": "integer", "b": "integer"},
        ("add {a} and {b}", "[what is|what's] {a} + {b}", "{a} plus {b}", "sum {a} and {b}"),
    ),
    Tool(
        "multiply",
        "Multiply two numbers.",
        {"a": "integer", "b": "integer"},
        ("multiply {a} [and|by] {b}", "[what is|what's] {a} [times|x|*] {b}"),
    ),
    Tool(
        "roll_dice",
        "Roll a dice with some sides.",
        {"sides": "integer"},
        ("roll a dice with {sides} sides", "roll a {sides} sided dice", "throw a dice with {sides} sides"),
    ),
    Tool(
        "get_population",
        "Get the population of a country.",
        {"country": "string"},
        (
            "[what is|what's] the population of {country}",
            "how many people live in {country}",
            "population of {country}",
        ),
    ),
    Tool(
        "translate",
        "Translate a text.",
        {"text": "string", "language": "string"},
        ("translate {text} [to|into] {language}", "how do you say {text} in {language}"),
    ),
    Tool(
        "turn_on",
        "Turn on a device.",
        {"device": "string"},
        ("turn on the {device}", "[switch|put] on the {device}", "turn the {device} on"),
        "do",
    ),
    Tool(
        "lookup_word",
        "Look up the meaning of a word.",
        {"word": "string"},
        ("what does {word} mean", "[define|look up] {word}", "meaning of {word}"),
    ),
]
