"""Questions on the user's files: a search with the question as its query, then an answer with its passage's number."""

from dataclasses import dataclass

from scripts.demo.dialogue import Episode, Exchange, Maker, ToolCall
from scripts.demo.dialogues.passages import Fact, Passage, asked, passage, upper
from scripts.demo.dialogues.server_tools import beside
from scripts.demo.draw import Draw
from serving.orchestrator.marked_data import marked

NOT_THERE = "not in the files"
LEADS = [
    "{q}",
    "{q}",
    "{q}",
    "According to the {f}, {q}",
    "Search the {f}: {q}",
    "Look in [my|the] {f}: {q}",
    "what does the {f} say: {q}",
    "From the {f}: {q}",
    "Use [my|the] {f}. {q}",
    "{q} Look it up in the {f}.",
]
FILES = ["file", "files", "document", "documents", "pdf", "PDF", "handbook", "report", "manual", "uploaded file"]


@dataclass(frozen=True)
class Told:
    """What `marked` reads: a passage with its number, or a tool's whole result."""

    id: str
    title: str
    text: str


def _found(draw: Draw, sources: list[Passage], asked_for: Fact | None) -> tuple[str, list[str]]:
    """The tool's result as the prompt holds it, and each source's number. Some hold whole passages, most the few
    sentences nearest to the question (`retrieval.told_sentences`), `asked_for` among them if it is there."""
    numbers = draw.sample(range(100_000), len(sources))
    title = draw.choice([draw.word, draw.thing])() + draw.choice([".pdf", ".pdf", ".txt", ".md"])
    texts = _nearest(draw, sources, asked_for) if draw.chance(0.7) else [source.text for source in sources]
    told = []
    for number, text in zip(numbers, texts, strict=True):
        if not text:
            continue
        heading = f"{upper(draw.word())} {draw.thing()}{draw.choice([' ', chr(10)])}" if draw.chance(0.2) else ""
        told.append(marked(Told(f"{number:05}", title, heading + text), "document"))
    draw.rng.shuffle(told)
    return marked(Told("file_search", "", "\n\n".join(told)), "result"), [f"{number:05}" for number in numbers]


def _nearest(draw: Draw, sources: list[Passage], asked_for: Fact | None) -> list[str]:
    """Of each source the sentences that are told, line by line; one to four in all, of the first source most often."""
    spots = [(index, fact) for index, source in enumerate(sources) for fact in source.facts]
    draw.rng.shuffle(spots)
    spots.sort(key=lambda spot: (spot != (0, asked_for), spot[0] > 0 and draw.chance(0.7)))
    told = spots[: draw.choice([1, 2, 2, 3, 4, 4])]
    return [
        "\n".join(fact.sentence for fact in source.facts if (index, fact) in told)
        for index, source in enumerate(sources)
    ]


def _exchange(draw: Draw, absent: bool) -> Exchange:
    sources = [passage(draw, 4) for _ in range(draw.choice([1, 1, 1, 1, 2, 3]))]
    if absent:
        item = draw.choice(sources[0].absent)
        fact, wording, answer = None, item.question, item.answer(NOT_THERE)
        if any(wording == known.question for source in sources for known in source.facts):
            return _exchange(draw, absent)
    else:
        fact = draw.choice(sources[0].facts)
        wording, answer = fact.question, fact.answer
    result, numbers = _found(draw, sources, fact)
    if absent and draw.chance(0.2):
        result = marked(Told("file_search", "", "Nothing was found in the files."), "result")
    question = asked(draw, wording)
    lead = draw.expand(draw.choice(LEADS))
    lead = lead if lead.startswith("{q}") or draw.chance(0.5) else lead[:1].lower() + lead[1:]
    text = lead.format(q=question, f=draw.choice(FILES))
    call = ToolCall("file_search", {"query": question.rstrip("?")}, result)
    full = answer if absent else f"{answer} [{numbers[0]}]"
    return Exchange(text, full, full, key="", calls=(call,))


def _episode(draw: Draw, exchanges: int) -> Episode:
    made = tuple(_exchange(draw, draw.chance(0.3)) for _ in range(exchanges))
    return Episode("file search", made, tools=beside(draw, "file_search"))


def search(draw: Draw) -> Episode:
    """One or two questions, answered from what is found, or said not to be there."""
    return _episode(draw, draw.choice([1, 1, 1, 1, 1, 2]))


def searches(draw: Draw) -> Episode:
    """Two or three: the tool's description is most of a conversation with one."""
    return _episode(draw, draw.integer(2, 3))


MAKERS: list[tuple[float, Maker]] = [(3.0, search), (1.0, searches)]
