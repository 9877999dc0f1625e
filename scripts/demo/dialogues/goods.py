"""Facts about events, products, offices and single objects."""

from scripts.demo.dialogues.attributes import Attribute, clock, count, day, made_up, money
from scripts.demo.draw import Draw
from scripts.demo.words import COLOURS

SPOTS = [
    "under the {t}",
    "behind the {t}",
    "in the {t}",
    "on the {t}",
    "next to the {t}",
    "above the {t}",
    "near the {t}",
]
EVENT = [
    Attribute(
        "the date of {e} is",
        day,
        ("{e} takes place on {v}.", "{e} will be held on {v}.", "The date of {e} is {v}.", "{e} starts on {v}."),
        (
            "[when is {e}|when does {e} take place]",
            "[what is|what's] the date of {e}",
            "on [what|which] [day|date] is {e}",
            "[what|which] day is {e}",
            "when will {e} be [held|]",
        ),
    ),
    Attribute(
        "the venue of {e} is",
        Draw.place,
        (
            "{e} takes place in {v}.",
            "{e} will be held in {v}.",
            "The venue of {e} is in {v}.",
            "Guests of {e} meet in {v}.",
        ),
        (
            "where [is|does] {e} [|take place|held]",
            "where will {e} be [held|]",
            "[what|which] [city|town] hosts {e}",
            "where do guests of {e} meet",
        ),
    ),
    Attribute(
        "the host of {e} is",
        Draw.full_name,
        ("{e} is organised by {v}.", "{v} organises {e}.", "The host of {e} is {v}."),
        ("who [organises|organizes|hosts|runs] {e}", "who is the [organiser|host] of {e}", "who is {e} organised by"),
    ),
    Attribute(
        "the price of {e} is",
        money,
        ("A ticket for {e} costs {v}.", "Tickets for {e} cost {v}.", "The entrance fee of {e} is {v}."),
        (
            "how much [is|does] a ticket for {e} [|cost]",
            "[what is|what's] the [price|entrance fee|cost] [of|for] {e}",
            "how much do tickets for {e} cost",
            "what does {e} cost",
        ),
    ),
    Attribute(
        "the start of {e} is",
        clock,
        ("{e} begins at {v}.", "The doors of {e} open at {v}.", "{e} starts at {v} sharp."),
        (
            "[what time|at what time|when] does {e} [begin|start]",
            "when do the doors of {e} open",
            "[what|which] time does {e} start",
        ),
    ),
    Attribute(
        "the attendance of {e} is",
        lambda d: f"{count(d)} guests",
        ("{e} expects {v}.", "{v} are coming to {e}.", "There is room for {v} at {e}."),
        (
            "how many [guests|people] [are coming to|does|are expected at|will be at] {e} [|expect]",
            "how many guests does {e} expect",
            "for how many guests is there room at {e}",
        ),
    ),
]
PRODUCT = [
    Attribute(
        "the price of {e} is",
        money,
        ("{e} costs {v}.", "The price of {e} is {v}.", "{e} sells for {v}.", "You can buy {e} for {v}."),
        (
            "how much [is|does] {e} [|cost]",
            "what is the price of {e}",
            "what does {e} cost",
            "[what's|how high is] the price of {e}",
        ),
    ),
    Attribute(
        "the weight of {e} is",
        lambda d: f"{d.number(4)} {d.choice(['grams', 'kilograms', 'pounds'])}",
        ("{e} weighs {v}.", "The weight of {e} is {v}.", "At {v}, {e} is light."),
        ("how much does {e} weigh", "what is the weight of {e}", "how heavy is {e}", "what does {e} weigh"),
    ),
    Attribute(
        "the colours of {e} are",
        lambda d: f"{d.choice(COLOURS)} and {d.choice(COLOURS)}",
        ("{e} comes in {v}.", "{e} is sold in {v}.", "The colours of {e} are {v}."),
        (
            "[what|which] colours does {e} come in",
            "what are the colours of {e}",
            "[what|which] colors does {e} come in",
            "in [what|which] colours is {e} sold",
        ),
    ),
    Attribute(
        "the maker of {e} is",
        made_up,
        ("{e} is made by {v}.", "The maker of {e} is {v}.", "{v} builds {e}.", "{e} comes from the workshop of {v}."),
        (
            "who [makes|builds|produces] {e}",
            "who is the maker of {e}",
            "[what|which] company makes {e}",
            "who is {e} made by",
        ),
    ),
    Attribute(
        "the battery life of {e} is",
        lambda d: f"{d.number(2)} hours",
        ("The battery of {e} lasts {v}.", "{e} runs {v} on one charge.", "One charge of {e} is good for {v}."),
        (
            "how long does the battery of {e} last",
            "how long does {e} run on one charge",
            "how many hours does {e} run",
            "what is the battery life of {e}",
        ),
    ),
    Attribute(
        "the warranty of {e} is",
        lambda d: f"{d.integer(1, 10)} years",
        ("{e} has a warranty of {v}.", "The warranty of {e} is {v}.", "The maker gives {v} of warranty on {e}."),
        ("how long is the warranty [of|on] {e}", "[what|which] warranty does {e} have", "what is the warranty of {e}"),
    ),
    Attribute(
        "the material of {e} is",
        lambda d: d.choice(
            [
                "wood",
                "steel",
                "glass",
                "paper",
                "leather",
                "plastic",
                "stone",
                "wool",
                "copper",
                "cotton",
                "clay",
                "bamboo",
                "aluminium",
            ]
        ),
        ("{e} is made of {v}.", "{e} is built from {v}.", "The material of {e} is {v}."),
        ("what is {e} made of", "[what|which] material is {e} [made of|]", "what is {e} built from"),
    ),
    Attribute(
        "the code of {e} is",
        Draw.code,
        ("The order code of {e} is {v}.", "{e} has the number {v}.", "To order {e}, use code {v}."),
        (
            "what is the [order code|number|code] of {e}",
            "[what|which] code [does {e} have|orders {e}]",
            "what code do i use [for|to order] {e}",
        ),
    ),
]
OFFICE = [
    Attribute(
        "the opening time of {e} is",
        clock,
        ("{e} opens at {v}.", "{e} is open from {v}.", "The opening time of {e} is {v}."),
        ("when does {e} open", "[what time|at what time] does {e} open", "what is the opening time of {e}"),
    ),
    Attribute(
        "the closing time of {e} is",
        clock,
        ("{e} closes at {v}.", "{e} shuts at {v}.", "The closing time of {e} is {v}."),
        (
            "when does {e} [close|shut]",
            "[what time|at what time] does {e} close",
            "what is the closing time of {e}",
            "until when is {e} open",
        ),
    ),
    Attribute(
        "the phone number of {e} is",
        lambda d: " ".join(str(d.number(3)) for _ in range(2)),
        ("The phone number of {e} is {v}.", "You can call {e} on {v}.", "{e} can be reached by phone at {v}."),
        (
            "what is the phone number of {e}",
            "how can i [call|phone|reach] {e}",
            "[what|which] number [do i call for|has] {e}",
        ),
    ),
    Attribute(
        "the email of {e} is",
        lambda d: f"{d.word()}@{d.word()}.{d.choice(['com', 'org', 'net'])}",
        ("The email of {e} is {v}.", "Write to {e} at {v}.", "Send mail for {e} to {v}."),
        ("what is the email [of|address of] {e}", "how do i [write to|email] {e}", "where do i send mail for {e}"),
    ),
    Attribute(
        "the refund period of {e} is",
        lambda d: f"{d.integer(2, 60)} days",
        ("{e} takes goods back within {v}.", "The refund period of {e} is {v}.", "Refunds at {e} take {v}."),
        (
            "what is the refund period of {e}",
            "within how many days does {e} take goods back",
            "how long do refunds [at {e} take|take at {e}]",
            "how many days do i have for a refund at {e}",
        ),
    ),
    Attribute(
        "the address of {e} is",
        lambda d: (
            f"{d.integer(1, 200)} {d.word().capitalize()} {d.choice(['Street', 'Road', 'Square', 'Lane', 'Avenue'])}"
        ),
        ("{e} is at {v}.", "The address of {e} is {v}.", "You find {e} at {v}."),
        ("where is {e}", "what is the address of {e}", "where do i find {e}"),
    ),
    Attribute(
        "the wifi password of {e} is",
        Draw.code,
        (
            "The wifi password of {e} is {v}.",
            "At {e} the wifi password is {v}.",
            "Guests of {e} use the wifi password {v}.",
        ),
        ("what is the wifi password [of|at] {e}", "[what is|what's] the password for the wifi [of|at] {e}"),
    ),
    Attribute(
        "the manager of {e} is",
        Draw.full_name,
        ("The manager of {e} is {v}.", "{v} manages {e}.", "{e} is managed by {v}."),
        ("who [manages|is the manager of] {e}", "who is {e} managed by", "what is the name of the manager of {e}"),
    ),
]
OBJECT = [
    Attribute(
        "the place of {e} is",
        lambda d: d.choice(SPOTS).format(t=d.thing()),
        ("{e} is {v}.", "You find {e} {v}.", "{e} lies {v}.", "We keep {e} {v}."),
        ("where is {e}", "where [do|can] i find {e}", "where [is|are] {e} kept", "where do we keep {e}"),
    ),
    Attribute(
        "the owner of {e} is",
        Draw.first_name,
        ("{e} belongs to {v}.", "The owner of {e} is {v}.", "{v} owns {e}.", "{v} bought {e}."),
        ("who [owns|has] {e}", "who is the owner of {e}", "[whose is|to whom belongs] {e}", "who does {e} belong to"),
    ),
    Attribute(
        "the colour of {e} is",
        lambda d: d.choice(COLOURS),
        ("{e} is {v}.", "The colour of {e} is {v}.", "Someone painted {e} {v}."),
        (
            "[what|which] colour is {e}",
            "what is the colour of {e}",
            "[what|which] color is {e}",
            "what is the color of {e}",
        ),
    ),
    Attribute(
        "the price of {e} is",
        money,
        ("{e} costs {v}.", "The price of {e} is {v}.", "{e} cost us {v}."),
        ("how much [is|does] {e} [|cost]", "what is the price of {e}", "what does {e} cost", "what did {e} cost"),
    ),
    Attribute(
        "the code of {e} is",
        Draw.code,
        ("The number of {e} is {v}.", "{e} has the code {v}.", "The code for {e} is {v}."),
        ("what is the [number|code] [of|for] {e}", "[what|which] [number|code] has {e}", "what is the code for {e}"),
    ),
    Attribute(
        "the arrival of {e} is",
        day,
        ("{e} arrives on {v}.", "We expect {e} on {v}.", "{e} will come on {v}."),
        ("when does {e} [arrive|come]", "when will {e} [arrive|come]", "on [what|which] day does {e} arrive"),
    ),
    Attribute(
        "the length of {e} is",
        lambda d: f"{d.integer(1, 900)} {d.choice(['metres', 'feet', 'centimetres', 'inches'])}",
        ("{e} is {v} long.", "The length of {e} is {v}.", "{e} measures {v}."),
        ("how long is {e}", "what is the length of {e}", "how [large|big] is {e}"),
    ),
]
