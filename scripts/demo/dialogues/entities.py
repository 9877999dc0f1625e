"""What passages are about: people, firms, towns, events, products, offices and objects, each with facts and questions."""

from collections.abc import Callable

from scripts.demo.dialogues.attributes import Attribute, made_up
from scripts.demo.dialogues.goods import EVENT, OBJECT, OFFICE, PRODUCT
from scripts.demo.dialogues.people import COMPANY, PERSON, TOWN
from scripts.demo.draw import Draw
from scripts.demo.words import COLOURS, THINGS

NOUNS = "status level owner leader colour code limit name price value number address size deadline version budget goal rule reason speed".split()


def note(noun: str) -> Attribute:
    """A fact of a made-up kind: the noun itself must be matched."""
    return Attribute(
        f"the {noun} of {{e}} is",
        lambda d: d.choice([d.first_name, d.place, d.code, d.word, lambda: str(d.number(4)), d.full_name, d.thing])(),
        (
            f"The {noun} of {{e}} is {{v}}.",
            f"{{e}} has the {noun} {{v}}.",
            f"As {noun} of {{e}} we chose {{v}}.",
            f"{{v}} is the {noun} of {{e}}.",
        ),
        (
            f"what is the {noun} of {{e}}",
            f"what is {{e}}'s {noun}",
            f"[what|which] {noun} does {{e}} have",
            f"tell me the {noun} of {{e}}",
        ),
    )


def _event(draw: Draw) -> str:
    return f"the {draw.word().capitalize()} {draw.choice(['Festival', 'Fair', 'Conference', 'Concert', 'Market', 'Meeting', 'Race', 'Summit', 'Workshop', 'Exhibition', 'Party'])}"


def _office(draw: Draw) -> str:
    kind = draw.choice(
        [
            "Library",
            "Museum",
            "Bank",
            "Hotel",
            "Office",
            "Shop",
            "Clinic",
            "Cafe",
            "School",
            "Theatre",
            "Gallery",
            "Restaurant",
            "Pharmacy",
            "Station",
        ]
    )
    return f"the {draw.word().capitalize()} {kind}" if draw.chance(0.7) else f"the {kind.lower()}"


def _product(draw: Draw) -> str:
    return draw.choice(
        [
            f"the {draw.word().capitalize()}",
            f"the {draw.word().capitalize()} {draw.integer(1, 900)}",
            f"the {draw.thing()}",
            f"the {draw.word().capitalize()} {draw.choice(THINGS)}",
        ]
    )


ENTITIES: list[tuple[Callable[[Draw], str], list[Attribute]]] = [
    (lambda d: d.full_name() if d.chance(0.6) else d.first_name(), PERSON),
    (lambda d: d.word().capitalize() + d.choice(["", "", " Ltd", " Labs", " Works", " and Sons"]), COMPANY),
    (made_up, TOWN),
    (_event, EVENT),
    (_product, PRODUCT),
    (_office, OFFICE),
    (lambda d: f"the {d.thing()}" if d.chance(0.7) else f"the {d.choice(COLOURS)} {d.thing()}", OBJECT),
]
