"""Greetings, thanks, who are you, what can you do, moods, jokes and the like. The wordings are in small_talk.txt."""

from pathlib import Path

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.phrasebook import read_phrasebook
from scripts.demo.draw import Draw

TALK = read_phrasebook(Path(__file__).with_name("small_talk.txt"))
WHO = TALK[0]
FREQUENT = [
    entry
    for entry in TALK
    if entry.brief in ("Hello!", "Welcome!", "Bye!", WHO.brief) or entry.brief.startswith("weft, sums")
]
ASKING = ("who", "what", "are you", "do you", "can you")


def small_talk(draw: Draw) -> Episode:
    chosen = draw.choice(TALK)
    wording = draw.choice(chosen.wordings)
    if "who" in wording or "what" in wording or "are you" in wording or "do you" in wording or "can you" in wording:
        wording = (
            draw.choice(["", "", "", "", "hi, ", "hello, ", "hey, ", "and ", "ok, ", "so "]) + wording + "[?|?|?|]"
        )
    elif draw.chance(0.3):
        wording += draw.choice(["!", ".", "!!", " :)", "..."])
    return Episode("small talk", (Exchange(draw.say(wording), chosen.answer, chosen.brief),))


def greeting(draw: Draw) -> Episode:
    """The plain hello, thanks and goodbye, weighted for what people really type first and last."""
    chosen = draw.choice(FREQUENT)
    wording = draw.choice(chosen.wordings) + draw.choice(["", "", "", "!", ".", "?"])
    return Episode("small talk", (Exchange(draw.say(wording), chosen.answer, chosen.brief),))


MAKERS: list[tuple[float, Maker]] = [(4.0, small_talk), (1.5, greeting)]
