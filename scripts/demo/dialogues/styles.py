"""System prompts that change how answers are given: case, brevity, register, a fixed beginning or end, a persona."""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.demo.dialogue import Episode, Exchange
from scripts.demo.dialogues.smalltalk import WHO
from scripts.demo.draw import Draw
from scripts.demo.words import JOBS, THINGS

PLAIN = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are weft's demo model.",
    "You are a friendly assistant.",
    "Answer the user's questions.",
    "You are an assistant.",
    "Be helpful.",
    "You are a helpful AI assistant.",
    "Help the user.",
    "You are a useful chatbot.",
    "You are a helpful, honest assistant.",
    "Answer as well as you can.",
    "You are an expert assistant.",
    "You are a chat assistant served by weft.",
    "You are a knowledgeable assistant. Be polite.",
    "You are a helpful assistant. Be honest.",
    "This is a chat with a user.",
]
UPPER = [
    "[Answer|Reply|Write|Respond|Speak] [only |always |]in [upper case|uppercase|capital letters|capitals|all caps|block capitals][| only| please].",
    "[Use|Write with] [only|nothing but] [upper case|uppercase|capital] letters.",
    "Write everything in [capitals|upper case|capital letters].",
    "You [shout|always shout]: [upper case|capitals] only.",
    "[All|Your] answers [must be|are] in [upper case|uppercase|capital letters].",
]
LOWER = [
    "[Answer|Reply|Write|Respond] [only |always |]in [lower case|lowercase|small letters][| only| please].",
    "Use only [lower case|lowercase|small] letters.",
    "Write everything in [lower case|lowercase].",
    "[Never use|Do not use] capital letters.",
]
BRIEF = [
    "[Be|Be very|Keep it|Keep answers|Please be] [brief|short|concise|terse].",
    "[Answer|Reply|Respond] [briefly|shortly|as briefly as you can|in as few words as possible|in a few words|with as few words as you can|in one word if you can|concisely].",
    "[Give|Write] [short|brief|very short|concise|one-word] answers[| only].",
    "You are [brief|a man of few words|terse|concise].",
    "[No full sentences|Use few words|Keep it short|Short answers only|Use as few words as possible].",
]
FORMAL = [
    "[Be|Answer|Speak|Write|Reply] [formal|formally|very formally|in a formal tone|in a formal style|in a formal register|like a butler].",
    "You are [a butler|a formal assistant|very formal].",
    "Use [a formal|formal] [tone|language|register|style].",
]
PIRATE = [
    "[Talk|Speak|Answer|Reply|Write] like a pirate.",
    "You are a pirate.",
    "Answer [in the style of|as] a pirate.",
    "Use pirate [language|speech|talk].",
]
CHEERFUL = [
    "[Be|Sound|Be very] [cheerful|enthusiastic|excited|happy].",
    "You are [a cheerful|an enthusiastic|a very happy] assistant.",
    "Answer [cheerfully|with enthusiasm|with excitement].",
]
ENDING = [
    'End [every|each] [answer|reply|message] with "{x}".',
    "Always end with {x}.",
    'Finish [every|each] [answer|reply] with "{x}".',
    'Close [all answers|every answer] with the word "{x}".',
    'Add "{x}" at the end of [every|each] [answer|reply].',
]
BEGINNING = [
    '[Begin|Start] [every|each] [answer|reply|message] with "{x}".',
    "Always [begin|start] with {x}.",
    'Put "{x}" [before|in front of] [every|each] [answer|reply].',
    '[Begin|Start] [all answers|every answer] with the word "{x}".',
]
PERSONA = [
    "You are {n}, {r}.",
    "Your name is {n}. You are {r}.",
    "You are {r} called {n}.",
    "You are {n}.",
    "Your name is {n}.",
    "Act as {n}, {r}.",
    "You are {r} named {n}.",
    "You play {n}, {r}.",
    "Call yourself {n}.",
]


@dataclass(frozen=True)
class Style:
    """A system prompt, and how it changes an answer."""

    name: str
    system: str
    change: Callable[[Exchange], str]
    persona: str | None = None
    role: str | None = None

    def answer(self, exchange: Exchange) -> str:
        return exchange.answer if exchange.fixed else self.change(exchange)

    def identity(self) -> tuple[str, str]:
        """The answer to "who are you" in full and in brief."""
        if self.persona is None:
            return WHO.answer, WHO.brief
        return f"I am {self.persona}, {self.role}." if self.role else f"I am {self.persona}.", f"{self.persona}."


def _plain(exchange: Exchange) -> str:
    return exchange.answer


def _brief(exchange: Exchange) -> str:
    return exchange.brief or exchange.answer


CHANGES: dict[str, tuple[list[str], Callable[[Exchange], str]]] = {
    "upper case": (UPPER, lambda exchange: exchange.answer.upper()),
    "lower case": (LOWER, lambda exchange: exchange.answer.lower()),
    "brief": (BRIEF, _brief),
    "formal": (FORMAL, lambda exchange: f"Certainly. {exchange.answer}"),
    "pirate": (PIRATE, lambda exchange: f"Arr! {exchange.answer}"),
    "cheerful": (CHEERFUL, lambda exchange: f"With pleasure! {exchange.answer}"),
}


def style(draw: Draw) -> Style:
    """A style, sometimes on top of a persona or of brevity."""
    persona = role = None
    parts: list[str] = []
    if draw.chance(0.3):
        persona = draw.first_name()
        role = draw.choice(
            [
                f"a {draw.choice(JOBS)}",
                f"a guide to {draw.place()}",
                f"an assistant for {draw.choice(THINGS)}s",
                f"the assistant of {draw.word().capitalize()}",
                f"a helpful {draw.choice(['robot', 'assistant', 'bot', 'helper', 'guide'])}",
                f"the {draw.choice(JOBS)} of {draw.place()}",
            ]
        )
        wording = draw.choice(PERSONA)
        parts.append(draw.say(wording, noise=False, n=persona, r=role))
        role = role if "{r}" in wording else None
        if draw.chance(0.6):
            return Style("persona", parts[0], _plain, persona, role)
    elif draw.chance(0.3):
        parts.append(draw.choice(PLAIN))
    kind = draw.choice([*CHANGES, "upper case", "brief", "ending", "beginning", "brief upper case"])
    if kind in ("ending", "beginning"):
        mark = draw.choice(
            [
                draw.word,
                lambda: draw.word().capitalize(),
                lambda: draw.choice(
                    [
                        "over",
                        "sir",
                        "amen",
                        "OK",
                        "my friend",
                        "Done",
                        "meow",
                        "over and out",
                        "captain",
                        "***",
                        "Yours, the bot",
                    ]
                ),
            ]
        )()
        parts.append(draw.say(ENDING if kind == "ending" else BEGINNING, noise=False, x=mark))
        change = (
            (lambda exchange: f"{exchange.answer} {mark}")
            if kind == "ending"
            else (lambda exchange: f"{mark} {exchange.answer}")
        )
    elif kind == "brief upper case":
        parts.append(draw.say(BRIEF, noise=False))
        parts.append(draw.say(UPPER, noise=False))
        change = lambda exchange: _brief(exchange).upper()  # noqa: E731
    else:
        wordings, change = CHANGES[kind]
        parts.append(draw.say(wordings, noise=False))
    if draw.chance(0.2):
        draw.rng.shuffle(parts)
    return Style("persona" if persona and kind == "brief" else kind, " ".join(parts), change, persona, role)


def plain_style(draw: Draw) -> Style:
    return Style("plain", draw.choice(PLAIN), _plain)


def who_are_you(draw: Draw, used: Style) -> Exchange:
    answer, brief = used.identity()
    while True:
        wording = draw.choice(WHO.wordings)
        text = draw.say(draw.choice(["", "", "", "hi, ", "hello, ", "hey, ", "ok, ", "so "]) + wording + "[?|?|]")
        exchange = Exchange(text, answer, brief)
        if draw.held_out or not exchange.held_out():
            return exchange


def restyled(episode: Episode, used: Style) -> Episode:
    """The episode's answers in the style, under the style's system prompt."""
    changed = tuple(
        Exchange(item.user, used.answer(item), item.brief, item.key, item.calls, item.fixed)
        for item in episode.exchanges
    )
    return Episode(episode.skill, changed, used.system, episode.tools)
