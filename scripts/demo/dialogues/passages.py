"""Questions on a passage put in the context: the answer stands in it, or the passage does not say."""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw
from scripts.demo.words import ANIMALS, COLOURS, FOODS, HOBBIES, JOBS, THINGS

ABSENT = "The passage does not say."
MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True)
class Attribute:
    """One fact about an entity {e}: sentences that state {v}, and questions for it."""

    value: Callable[[Draw], str]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


def year(draw: Draw) -> str:
    return str(draw.integer(1200, 2030))


def day(draw: Draw) -> str:
    return f"{draw.integer(1, 28)} {draw.choice(MONTHS)}" if draw.chance(0.6) else f"{draw.choice(MONTHS)} {draw.integer(1, 28)}"


def clock(draw: Draw) -> str:
    return f"{draw.integer(6, 22)}:{draw.choice(['00', '15', '30', '45'])}"


def count(draw: Draw) -> str:
    number = draw.number(5)
    return f"{number:,}" if draw.chance(0.4) else str(number)


def money(draw: Draw) -> str:
    return f"{draw.number(4)} {draw.choice(['euros', 'dollars', 'pounds', 'francs', 'crowns'])}"


def things(draw: Draw) -> str:
    return f"{draw.choice([*COLOURS, 'old', 'wooden', 'paper', 'small', 'steel', 'glass'])} {draw.thing()}s"


def made_up(draw: Draw) -> str:
    return draw.word().capitalize()


PERSON = [
    Attribute(Draw.place, ("{e} lives in {v}.", "{e} has lived in {v} for years.", "The home of {e} is in {v}.", "{e} moved to {v} and still lives there.", "{e} has a house in {v}."), ("where does {e} live", "[what|which] [city|town|place] does {e} live in", "[where is|what is] the home of {e}", "where is {e}'s [home|house]")),
    Attribute(Draw.place, ("{e} was born in {v}.", "{e} comes from {v}.", "The birthplace of {e} is {v}.", "{e} is a native of {v}."), ("where was {e} born", "where does {e} come from", "[what is|what's] the birthplace of {e}", "where is {e} from")),
    Attribute(lambda d: d.choice(JOBS), ("{e} works as a {v}.", "{e} is a {v}.", "{e} became a {v}.", "By profession {e} is a {v}."), ("what does {e} do [for a living|for work|]", "what is {e}'s [job|profession]", "[what|which] [job|profession] does {e} have", "what does {e} work as")),
    Attribute(made_up, ("{e} works for {v}.", "{e} is employed by {v}.", "The employer of {e} is {v}.", "{e} has a position at {v}."), ("who does {e} work for", "where does {e} work", "[what|which] company does {e} work for", "who [employs|is the employer of] {e}")),
    Attribute(year, ("{e} was born in the year {v}.", "The year of birth of {e} is {v}.", "{e}, born in {v}, has seen much."), ("when was {e} born", "[what|which] year was {e} born [in|]", "in [what|which] year was {e} born")),
    Attribute(lambda d: d.choice(HOBBIES), ("In the evenings {e} enjoys {v}.", "The hobby of {e} is {v}.", "{e} spends every weekend on {v}.", "{e} loves {v}."), ("what is {e}'s hobby", "what does {e} [enjoy|like to do|love]", "what is the hobby of {e}", "what does {e} do in [the evenings|free time|the weekend]")),
    Attribute(lambda d: f"{d.choice(ANIMALS)} called {d.first_name()}", ("{e} has a {v}.", "{e} owns a {v}.", "{e} keeps a {v}."), ("[what|which] [pet|animal] does {e} [have|own|keep]", "does {e} have a pet", "what is {e}'s pet")),
    Attribute(lambda d: d.choice(FOODS), ("{e} likes to eat {v}.", "The favourite food of {e} is {v}.", "For lunch {e} always has {v}."), ("what is {e}'s favourite food", "what does {e} [like to eat|eat]", "what is the favourite food of {e}", "what does {e} eat for lunch")),
    Attribute(Draw.full_name, ("{e} is married to {v}.", "The partner of {e} is {v}.", "{v} is the partner of {e}."), ("who is {e} married to", "who is {e}'s [partner|husband|wife]", "who is the partner of {e}")),
    Attribute(lambda d: str(d.integer(3, 99)), ("{e} is {v} years old.", "{e} turned {v} this year.", "The age of {e} is {v}."), ("how old is {e}", "what is {e}'s age", "what is the age of {e}")),
]
COMPANY = [
    Attribute(Draw.full_name, ("{e} was founded by {v}.", "{v} founded {e}.", "The founder of {e} is {v}.", "{v} started {e} with two friends."), ("who [founded|started] {e}", "who is the founder of {e}", "who was {e} founded by", "[what is|what's] the name of the founder of {e}")),
    Attribute(year, ("{e} was founded in {v}.", "{e} opened its doors in {v}.", "The firm {e} has existed since {v}.", "{e} dates from {v}."), ("when was {e} founded", "[what|which] year was {e} founded", "since when has {e} existed", "in [what|which] year was {e} founded", "when did {e} [start|open]")),
    Attribute(Draw.place, ("{e} is based in {v}.", "The head office of {e} is in {v}.", "{e} has its main office in {v}.", "The company {e} sits in {v}."), ("where is {e} [based|located]", "where is the [head office|main office] of {e}", "[what|which] [city|town] is {e} based in")),
    Attribute(things, ("{e} makes {v}.", "{e} sells {v}.", "The main product of {e} is {v}.", "{e} is known for its {v}."), ("what does {e} [make|sell|produce]", "what is the main product of {e}", "what is {e} known for", "[what|which] product does {e} make")),
    Attribute(lambda d: f"{count(d)} people", ("{e} employs {v}.", "{v} work at {e}.", "{e} has a staff of {v}."), ("how many people [work at|work for|does|are employed by] {e}", "how many [employees|workers|people] does {e} [have|employ]", "how big is the staff of {e}")),
    Attribute(Draw.full_name, ("The director of {e} is {v}.", "{v} leads {e}.", "{e} is led by {v}.", "{v} is the head of {e}."), ("who [leads|runs|directs] {e}", "who is the [director|head|leader|boss] of {e}", "who is {e} led by")),
    Attribute(lambda d: f"{d.number(3)} million {d.choice(['euros', 'dollars', 'pounds'])}", ("{e} earned {v} last year.", "Last year {e} had sales of {v}.", "The sales of {e} were {v}."), ("how much did {e} [earn|make]", "what were the sales of {e}", "how much money did {e} [earn|make] last year")),
]
TOWN = [
    Attribute(made_up, ("{e} lies on the river {v}.", "The river {v} flows through {e}.", "{e} stands on the banks of the {v}."), ("[what|which] river [flows through|runs through] {e}", "on [what|which] river [is|lies|does] {e} [|lie]", "what is the river in {e} called", "[what|which] river is {e} on")),
    Attribute(count, ("{e} has {v} inhabitants.", "About {v} people live in {e}.", "The population of {e} is {v}.", "{e} is home to {v} people."), ("how many [people live in|inhabitants does|people are in] {e} [|have]", "what is the population of {e}", "how [big|large] is {e}", "how many inhabitants does {e} have")),
    Attribute(Draw.full_name, ("The mayor of {e} is {v}.", "{v} is the mayor of {e}.", "{e} is governed by mayor {v}."), ("who is the mayor of {e}", "who [governs|leads] {e}", "what is the name of the mayor of {e}", "who is {e}'s mayor")),
    Attribute(things, ("{e} is famous for its {v}.", "Visitors come to {e} for its {v}.", "People know {e} for its {v}."), ("what is {e} [famous|known] for", "why do [visitors|people] come to {e}", "what do visitors come to {e} for")),
    Attribute(made_up, ("The main square of {e} is called {v}.", "At the centre of {e} is {v} Square.", "The old castle in {e} is called {v}."), ("what is the [main square|castle|old castle|square] [of|in] {e} called", "what is the name of the [main square|castle|square] [of|in] {e}")),
    Attribute(year, ("{e} was first mentioned in {v}.", "{e} became a town in {v}.", "The town of {e} was built in {v}."), ("when was {e} [first mentioned|built]", "when did {e} become a town", "[what|which] year was {e} [built|first mentioned]")),
    Attribute(lambda d: f"{d.integer(2, 400)} kilometres", ("{e} is {v} from the sea.", "The distance from {e} to the capital is {v}.", "From {e} it is {v} to the border."), ("how far is {e} from the [sea|capital|border]", "how far is it from {e} to the [sea|capital|border]", "what is the distance from {e} to the [capital|sea|border]")),
]
EVENT = [
    Attribute(day, ("{e} takes place on {v}.", "{e} will be held on {v}.", "The date of {e} is {v}.", "{e} starts on {v}."), ("when [is|does] {e} [|take place|start]", "[what is|what's] the date of {e}", "on [what|which] [day|date] is {e}", "[what|which] day is {e}", "when will {e} be [held|]")),
    Attribute(Draw.place, ("{e} takes place in {v}.", "{e} will be held in {v}.", "The venue of {e} is in {v}.", "Guests of {e} meet in {v}."), ("where [is|does] {e} [|take place|held]", "where will {e} be [held|]", "[what|which] [city|town] hosts {e}", "where do guests of {e} meet")),
    Attribute(Draw.full_name, ("{e} is organised by {v}.", "{v} organises {e}.", "The host of {e} is {v}."), ("who [organises|organizes|hosts|runs] {e}", "who is the [organiser|host] of {e}", "who is {e} organised by")),
    Attribute(money, ("A ticket for {e} costs {v}.", "Tickets for {e} cost {v}.", "The entrance fee of {e} is {v}."), ("how much [is|does] a ticket for {e} [|cost]", "[what is|what's] the [price|entrance fee|cost] [of|for] {e}", "how much do tickets for {e} cost", "what does {e} cost")),
    Attribute(clock, ("{e} begins at {v}.", "The doors of {e} open at {v}.", "{e} starts at {v} sharp."), ("[what time|at what time|when] does {e} [begin|start]", "when do the doors of {e} open", "[what|which] time does {e} start")),
    Attribute(lambda d: f"{count(d)} guests", ("{e} expects {v}.", "{v} are coming to {e}.", "There is room for {v} at {e}."), ("how many [guests|people] [are coming to|does|are expected at|will be at] {e} [|expect]", "how many guests does {e} expect", "for how many guests is there room at {e}")),
]
PRODUCT = [
    Attribute(money, ("{e} costs {v}.", "The price of {e} is {v}.", "{e} sells for {v}.", "You can buy {e} for {v}."), ("how much [is|does] {e} [|cost]", "what is the price of {e}", "what does {e} cost", "[what's|how high is] the price of {e}")),
    Attribute(lambda d: f"{d.number(4)} {d.choice(['grams', 'kilograms', 'pounds'])}", ("{e} weighs {v}.", "The weight of {e} is {v}.", "At {v}, {e} is light."), ("how much does {e} weigh", "what is the weight of {e}", "how heavy is {e}", "what does {e} weigh")),
    Attribute(lambda d: f"{d.choice(COLOURS)} and {d.choice(COLOURS)}", ("{e} comes in {v}.", "{e} is sold in {v}.", "The colours of {e} are {v}."), ("[what|which] colours does {e} come in", "what are the colours of {e}", "[what|which] colors does {e} come in", "in [what|which] colours is {e} sold")),
    Attribute(made_up, ("{e} is made by {v}.", "The maker of {e} is {v}.", "{v} builds {e}.", "{e} comes from the workshop of {v}."), ("who [makes|builds|produces] {e}", "who is the maker of {e}", "[what|which] company makes {e}", "who is {e} made by")),
    Attribute(lambda d: f"{d.number(2)} hours", ("The battery of {e} lasts {v}.", "{e} runs {v} on one charge.", "One charge of {e} is good for {v}."), ("how long does the battery of {e} last", "how long does {e} run on one charge", "how many hours does {e} run", "what is the battery life of {e}")),
    Attribute(lambda d: f"{d.integer(1, 10)} years", ("{e} has a warranty of {v}.", "The warranty of {e} is {v}.", "The maker gives {v} of warranty on {e}."), ("how long is the warranty [of|on] {e}", "[what|which] warranty does {e} have", "what is the warranty of {e}")),
    Attribute(lambda d: d.choice(["wood", "steel", "glass", "paper", "leather", "plastic", "stone", "wool", "copper", "cotton", "clay", "bamboo", "aluminium"]), ("{e} is made of {v}.", "{e} is built from {v}.", "The material of {e} is {v}."), ("what is {e} made of", "[what|which] material is {e} [made of|]", "what is {e} built from")),
    Attribute(Draw.code, ("The order code of {e} is {v}.", "{e} has the number {v}.", "To order {e}, use code {v}."), ("what is the [order code|number|code] of {e}", "[what|which] code [does {e} have|orders {e}]", "what code do i use [for|to order] {e}")),
]
OFFICE = [
    Attribute(clock, ("{e} opens at {v}.", "{e} is open from {v}.", "The opening time of {e} is {v}."), ("when does {e} open", "[what time|at what time] does {e} open", "what is the opening time of {e}")),
    Attribute(clock, ("{e} closes at {v}.", "{e} shuts at {v}.", "The closing time of {e} is {v}."), ("when does {e} [close|shut]", "[what time|at what time] does {e} close", "what is the closing time of {e}", "until when is {e} open")),
    Attribute(lambda d: " ".join(str(d.number(3)) for _ in range(2)), ("The phone number of {e} is {v}.", "You can call {e} on {v}.", "{e} can be reached by phone at {v}."), ("what is the phone number of {e}", "how can i [call|phone|reach] {e}", "[what|which] number [do i call for|has] {e}")),
    Attribute(lambda d: f"{d.word()}@{d.word()}.{d.choice(['com', 'org', 'net'])}", ("The email of {e} is {v}.", "Write to {e} at {v}.", "Send mail for {e} to {v}."), ("what is the email [of|address of] {e}", "how do i [write to|email] {e}", "where do i send mail for {e}")),
    Attribute(lambda d: f"{d.integer(2, 60)} days", ("{e} takes goods back within {v}.", "The refund period of {e} is {v}.", "Refunds at {e} take {v}."), ("what is the refund period of {e}", "within how many days does {e} take goods back", "how long do refunds [at {e} take|take at {e}]", "how many days do i have for a refund at {e}")),
    Attribute(lambda d: f"{d.integer(1, 200)} {d.word().capitalize()} {d.choice(['Street', 'Road', 'Square', 'Lane', 'Avenue'])}", ("{e} is at {v}.", "The address of {e} is {v}.", "You find {e} at {v}."), ("where is {e}", "what is the address of {e}", "where do i find {e}")),
    Attribute(Draw.code, ("The wifi password of {e} is {v}.", "At {e} the wifi password is {v}.", "Guests of {e} use the wifi password {v}."), ("what is the wifi password [of|at] {e}", "[what is|what's] the password for the wifi [of|at] {e}")),
    Attribute(Draw.full_name, ("The manager of {e} is {v}.", "{v} manages {e}.", "{e} is managed by {v}."), ("who [manages|is the manager of] {e}", "who is {e} managed by", "what is the name of the manager of {e}")),
]


def _event(draw: Draw) -> str:
    return f"the {draw.word().capitalize()} {draw.choice(['Festival', 'Fair', 'Conference', 'Concert', 'Market', 'Meeting', 'Race', 'Summit', 'Workshop', 'Exhibition', 'Party'])}"


def _office(draw: Draw) -> str:
    kind = draw.choice(["Library", "Museum", "Bank", "Hotel", "Office", "Shop", "Clinic", "Cafe", "School", "Theatre", "Gallery", "Restaurant", "Pharmacy", "Station"])
    return f"the {draw.word().capitalize()} {kind}" if draw.chance(0.7) else f"the {kind.lower()}"


def _product(draw: Draw) -> str:
    return draw.choice([f"the {draw.word().capitalize()}", f"the {draw.word().capitalize()} {draw.integer(1, 900)}", f"the {draw.thing()}", f"the {draw.word().capitalize()} {draw.choice(THINGS)}"])


ENTITIES: list[tuple[Callable[[Draw], str], list[Attribute]]] = [
    (lambda d: d.full_name() if d.chance(0.6) else d.first_name(), PERSON),
    (lambda d: d.word().capitalize() + d.choice(["", "", " Ltd", " Labs", " Works", " and Sons"]), COMPANY),
    (made_up, TOWN), (_event, EVENT), (_product, PRODUCT), (_office, OFFICE),
]
FILLERS = ["Many people know this.", "It has been so for a long time.", "The weather there is often mild.", "Some say it will change soon.", "There is more to tell.", "The old people remember it well.", "Nobody was surprised.", "It was a quiet year.", "A longer report will follow.", "Details are in the archive.", "The newspapers wrote about it.", "Everyone is welcome.", "That is no secret.", "It all began with an idea."]


@dataclass(frozen=True)
class Passage:
    text: str
    answered: list[tuple[str, str]]
    absent: list[str]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def passage(draw: Draw, most: int = 7) -> Passage:
    """A passage on one to three entities, the questions it answers and questions it does not."""
    maker, attributes = draw.choice(ENTITIES)
    total = draw.integer(1, most)
    names = [maker(draw) for _ in range(draw.choice([1, 1, 2, 2, 3]))]
    names = list(dict.fromkeys(names))
    facts: list[tuple[str, Attribute]] = [(name, attribute) for name in names for attribute in attributes]
    draw.rng.shuffle(facts)
    stated, unstated = facts[:total], facts[total:]
    if draw.chance(0.7):
        stated.sort(key=lambda fact: names.index(fact[0]))
    sentences, answered = [], []
    for name, attribute in stated:
        value = attribute.value(draw)
        sentences.append(_upper(draw.choice(attribute.sentences).format(e=name, v=value)))
        answered.append((draw.expand(draw.choice(attribute.questions)).format(e=name), value))
        if draw.chance(0.12):
            sentences.append(draw.choice(FILLERS))
    known = {name for name, _ in stated}
    stranger = maker(draw)
    absent = [draw.expand(draw.choice(attribute.questions)).format(e=name) for name, attribute in unstated if name in known]
    if stranger not in names:
        absent += [draw.expand(draw.choice(draw.choice(attributes).questions)).format(e=stranger) for _ in range(2)]
    absent.append(draw.expand(draw.choice(draw.choice(draw.choice(ENTITIES)[1]).questions)).format(e=draw.choice(names)))
    return Passage(" ".join(sentences), answered, absent)


IN_USER = [
    "Passage: {p}\n\nQuestion: {q}", "{p}\n\n{q}", "Context:\n{p}\n\nQuestion: {q}", "Text: {p}\n{q}", "Read this: {p}\n{q}", "{p} {q}", "Here is a text: {p} {q}", "Use the text to answer the question.\n\n{p}\n\n{q}",
    "Context: {p}\nQuestion: {q}\nAnswer:", "Answer from this passage.\n{p}\n{q}", "{q}\n\n{p}", "{q}\nText: {p}", "Question: {q}\nPassage: {p}", "Document:\n{p}\n\n{q}", "Based on this: {p} {q}", 'The text says: "{p}" {q}', "read the text and tell me {q}\n{p}",
]
IN_SYSTEM = [
    "Answer from this passage: {p}", "Use the passage to answer.\n\n{p}", "You are a helpful assistant. Use this document:\n{p}", "Context:\n{p}", "Documents:\n[1] {p}", "Answer the question from the text below. If the text does not hold the answer, say so.\n\n{p}",
    "Retrieved passages:\n{p}", "Here is what is known: {p}", "You answer questions about this text:\n{p}", "Relevant documents:\n\n{p}", "Use the following passages when they help.\n\n[1] {p}",
]


def _asked(draw: Draw, question: str) -> str:
    text = question + draw.choice(["?", "?", "?", ""])
    return text if draw.chance(0.4) else _upper(text)


def _pick(draw: Draw, source: Passage, absent: bool) -> tuple[str, str]:
    if absent:
        return _asked(draw, draw.choice(source.absent)), ABSENT
    question, value = draw.choice(source.answered)
    return _asked(draw, question), f"{_upper(value)}."


def _passage_episode(draw: Draw, absent: bool) -> Episode:
    source = passage(draw)
    turns = draw.choice([1, 1, 1, 2, 3])
    pairs = [_pick(draw, source, draw.chance(0.35)) for _ in range(turns - 1)] + [_pick(draw, source, absent)]
    skill = "passages, absent" if absent else "passages"
    if draw.chance(0.4):
        system = draw.choice(IN_SYSTEM)
        text = source.text
        if "[1]" in system and draw.chance(0.7):
            other = passage(draw, 3).text
            text = f"{text}\n[2] {other}"
        return Episode(skill, tuple(Exchange(q, a, a, key="") for q, a in pairs), system=system.format(p=text))
    first = draw.choice(IN_USER).format(p=source.text, q=pairs[0][0])
    return Episode(skill, (Exchange(first, pairs[0][1], pairs[0][1], key=""), *(Exchange(q, a, a, key="") for q, a in pairs[1:])))


def present(draw: Draw) -> Episode:
    return _passage_episode(draw, absent=False)


def absent(draw: Draw) -> Episode:
    return _passage_episode(draw, absent=True)


MAKERS: list[tuple[float, Maker]] = [(5.0, present), (3.0, absent)]
