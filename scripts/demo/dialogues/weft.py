"""Questions about weft: what it is, how to run it, what it speaks and where it runs. The wordings are in weft.txt."""

from pathlib import Path

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.phrasebook import read_phrasebook
from scripts.demo.draw import Draw

HOW = (
    "[how do i|how can i|how do you|how would i|how to|how should i|what's the command to|what is the command to|tell me how to|"
    "show me how to|i want to|i'd like to|can you tell me how to|what's the way to|i need to|help me|what do i type to|"
    "how does one|what script do i use to|which script [do i|should i] [use|run] to|explain how to|how can we|how do we|could you explain how to]"
)
HELLO = "[|||||hi, |hello, |hey, |ok, |so, |please |um, |well, |quick question: |one more thing: |and ]"
END = "[?|?|?|| please?| pls?| for me?| now?| exactly?| then?| thanks]"

FACTS = read_phrasebook(Path(__file__).with_name("weft.txt"), {"HOW": HOW})


def weft_question(draw: Draw) -> Episode:
    chosen = draw.choice(FACTS)
    wording = draw.choice(chosen.wordings)
    text = HELLO + wording + END if draw.chance(0.75) else wording + "?"
    return Episode("weft", (Exchange(draw.say(text), chosen.answer, chosen.brief),))


MAKERS: list[tuple[float, Maker]] = [(6.0, weft_question)]
