"""Facts about people, the firms they work for and the towns they live in."""

from scripts.demo.dialogues.attributes import Attribute, count, made_up, things, with_article, year
from scripts.demo.draw import Draw
from scripts.demo.words import ANIMALS, FOODS, HOBBIES, JOBS

PERSON = [
    Attribute(
        "the home of {e} is",
        Draw.place,
        (
            "{e} lives in {v}.",
            "{e} has lived in {v} for years.",
            "The home of {e} is in {v}.",
            "{e} moved to {v} and still lives there.",
            "{e} has a house in {v}.",
        ),
        (
            "where does {e} live",
            "[what|which] [city|town|place] does {e} live in",
            "[where is|what is] the home of {e}",
            "where is {e}'s [home|house]",
        ),
    ),
    Attribute(
        "the birthplace of {e} is",
        Draw.place,
        ("{e} was born in {v}.", "{e} comes from {v}.", "The birthplace of {e} is {v}.", "{e} is a native of {v}."),
        (
            "where was {e} born",
            "where does {e} come from",
            "[what is|what's] the birthplace of {e}",
            "where is {e} from",
        ),
    ),
    Attribute(
        "the job of {e} is",
        lambda d: with_article(d.choice(JOBS)),
        ("{e} works as {v}.", "{e} is {v}.", "{e} became {v}.", "By profession {e} is {v}."),
        (
            "what does {e} do [for a living|for work|]",
            "what is {e}'s [job|profession]",
            "[what|which] [job|profession] does {e} have",
            "what does {e} work as",
        ),
    ),
    Attribute(
        "the employer of {e} is",
        made_up,
        ("{e} works for {v}.", "{e} is employed by {v}.", "The employer of {e} is {v}.", "{e} has a position at {v}."),
        (
            "who does {e} work for",
            "where does {e} work",
            "[what|which] company does {e} work for",
            "who [employs|is the employer of] {e}",
        ),
    ),
    Attribute(
        "the year of birth of {e} is",
        year,
        ("{e} was born in the year {v}.", "The year of birth of {e} is {v}.", "{e}, born in {v}, has seen much."),
        ("when was {e} born", "[what|which] year was {e} born [in|]", "in [what|which] year was {e} born"),
    ),
    Attribute(
        "the hobby of {e} is",
        lambda d: d.choice(HOBBIES),
        (
            "In the evenings {e} enjoys {v}.",
            "The hobby of {e} is {v}.",
            "{e} spends every weekend on {v}.",
            "{e} loves {v}.",
        ),
        (
            "what is {e}'s hobby",
            "what does {e} [enjoy|like to do|love]",
            "what is the hobby of {e}",
            "what does {e} do in [the evenings|free time|the weekend]",
        ),
    ),
    Attribute(
        "the pet of {e} is",
        lambda d: f"{with_article(d.choice(ANIMALS))} called {d.first_name()}",
        ("{e} has {v}.", "{e} owns {v}.", "{e} keeps {v}."),
        ("[what|which] [pet|animal] does {e} [have|own|keep]", "does {e} have a pet", "what is {e}'s pet"),
    ),
    Attribute(
        "the favourite food of {e} is",
        lambda d: d.choice(FOODS),
        ("{e} likes to eat {v}.", "The favourite food of {e} is {v}.", "For lunch {e} always has {v}."),
        (
            "what is {e}'s favourite food",
            "what does {e} [like to eat|eat]",
            "what is the favourite food of {e}",
            "what does {e} eat for lunch",
        ),
    ),
    Attribute(
        "the partner of {e} is",
        Draw.full_name,
        ("{e} is married to {v}.", "The partner of {e} is {v}.", "{v} is the partner of {e}."),
        ("who is {e} married to", "who is {e}'s [partner|husband|wife]", "who is the partner of {e}"),
    ),
    Attribute(
        "the age of {e} is",
        lambda d: str(d.integer(3, 99)),
        ("{e} is {v} years old.", "{e} turned {v} this year.", "The age of {e} is {v}."),
        ("how old is {e}", "what is {e}'s age", "what is the age of {e}"),
    ),
]
COMPANY = [
    Attribute(
        "the founder of {e} is",
        Draw.full_name,
        (
            "{e} was founded by {v}.",
            "{v} founded {e}.",
            "The founder of {e} is {v}.",
            "{v} started {e} with two friends.",
        ),
        (
            "who [founded|started] {e}",
            "who is the founder of {e}",
            "who was {e} founded by",
            "[what is|what's] the name of the founder of {e}",
        ),
    ),
    Attribute(
        "the founding year of {e} is",
        year,
        (
            "{e} was founded in {v}.",
            "{e} opened its doors in {v}.",
            "The firm {e} has existed since {v}.",
            "{e} dates from {v}.",
        ),
        (
            "when was {e} founded",
            "[what|which] year was {e} founded",
            "since when has {e} existed",
            "in [what|which] year was {e} founded",
            "when did {e} [start|open]",
        ),
    ),
    Attribute(
        "the seat of {e} is",
        Draw.place,
        (
            "{e} is based in {v}.",
            "The head office of {e} is in {v}.",
            "{e} has its main office in {v}.",
            "The company {e} sits in {v}.",
        ),
        (
            "where is {e} [based|located]",
            "where is the [head office|main office] of {e}",
            "[what|which] [city|town] is {e} based in",
        ),
    ),
    Attribute(
        "the product of {e} is",
        things,
        ("{e} makes {v}.", "{e} sells {v}.", "The main product of {e} is {v}.", "{e} is known for its {v}."),
        (
            "what does {e} [make|sell|produce]",
            "what is the main product of {e}",
            "[what|which] product does {e} make",
        ),
    ),
    Attribute(
        "the staff of {e} is",
        lambda d: f"{count(d)} people",
        ("{e} employs {v}.", "{v} work at {e}.", "{e} has a staff of {v}."),
        (
            "how many people [work at|work for|does|are employed by] {e}",
            "how many [employees|workers|people] does {e} [have|employ]",
            "how big is the staff of {e}",
        ),
    ),
    Attribute(
        "the director of {e} is",
        Draw.full_name,
        ("The director of {e} is {v}.", "{v} leads {e}.", "{e} is led by {v}.", "{v} is the head of {e}."),
        ("who [leads|runs|directs] {e}", "who is the [director|head|leader|boss] of {e}", "who is {e} led by"),
    ),
    Attribute(
        "the sales of {e} are",
        lambda d: f"{d.number(3)} million {d.choice(['euros', 'dollars', 'pounds'])}",
        ("{e} earned {v} last year.", "Last year {e} had sales of {v}.", "The sales of {e} were {v}."),
        ("how much did {e} [earn|make]", "what were the sales of {e}", "how much money did {e} [earn|make] last year"),
    ),
]
TOWN = [
    Attribute(
        "the river of {e} is",
        made_up,
        ("{e} lies on the river {v}.", "The river {v} flows through {e}.", "{e} stands on the banks of the {v}."),
        (
            "[what|which] river [flows through|runs through] {e}",
            "on [what|which] river [is|lies|does] {e} [|lie]",
            "what is the river in {e} called",
            "[what|which] river is {e} on",
        ),
    ),
    Attribute(
        "the population of {e} is",
        count,
        (
            "{e} has {v} inhabitants.",
            "About {v} people live in {e}.",
            "The population of {e} is {v}.",
            "{e} is home to {v} people.",
        ),
        (
            "how many [people live in|inhabitants does|people are in] {e} [|have]",
            "what is the population of {e}",
            "how [big|large] is {e}",
            "how many inhabitants does {e} have",
        ),
    ),
    Attribute(
        "the mayor of {e} is",
        Draw.full_name,
        ("The mayor of {e} is {v}.", "{v} is the mayor of {e}.", "{e} is governed by mayor {v}."),
        (
            "who is the mayor of {e}",
            "who governs {e}",
            "what is the name of the mayor of {e}",
            "who is {e}'s mayor",
        ),
    ),
    Attribute(
        "the attraction of {e} is",
        things,
        ("{e} is famous for its {v}.", "Visitors come to {e} for its {v}.", "People know {e} for its {v}."),
        ("what is {e} [famous|known] for", "why do [visitors|people] come to {e}", "what do visitors come to {e} for"),
    ),
    Attribute(
        "the main square of {e} is",
        made_up,
        (
            "The main square of {e} is called {v}.",
            "At the centre of {e} is {v} Square.",
            "The people of {e} meet on {v} Square.",
        ),
        (
            "what is the [main square|square] [of|in] {e} called",
            "what is the name of the [main square|square] [of|in] {e}",
            "where do the people of {e} meet",
        ),
    ),
    Attribute(
        "the first year of {e} is",
        year,
        ("{e} was first mentioned in {v}.", "{e} became a town in {v}.", "The town of {e} was built in {v}."),
        (
            "when was {e} [first mentioned|built]",
            "when did {e} become a town",
            "[what|which] year was {e} [built|first mentioned]",
        ),
    ),
    Attribute(
        "the distance from {e} to the sea is",
        lambda d: f"{d.integer(2, 400)} kilometres",
        (
            "{e} is {v} from the sea.",
            "The distance from {e} to the sea is {v}.",
            "From {e} it is {v} to the sea.",
        ),
        (
            "how far is {e} from the sea",
            "how far is it from {e} to the sea",
            "what is the distance from {e} to the sea",
        ),
    ),
]
