"""The mixture: single episodes, styled ones, and long conversations that join skills."""

from collections.abc import Callable, Sequence

from scripts.demo.dialogue import Conversation, Episode, Exchange, Maker
from scripts.demo.dialogues import (
    arithmetic,
    dates,
    extraction,
    facts,
    file_search,
    memory,
    offground,
    passages,
    remote_tools,
    server_tools,
    smalltalk,
    styles,
    texts,
    tools,
    units,
    weft,
)
from scripts.demo.draw import Draw

SKILLS: dict[str, list[tuple[float, Maker]]] = {
    "weft": weft.MAKERS,
    "small talk": smalltalk.MAKERS,
    "off ground": offground.MAKERS,
    "facts": facts.MAKERS,
    "arithmetic": arithmetic.MAKERS,
    "dates": dates.MAKERS,
    "units": units.MAKERS,
    "texts": texts.MAKERS,
    "memory": memory.MAKERS,
    "passages": passages.MAKERS,
    "json": extraction.MAKERS,
    "tools": tools.MAKERS,
    "built-in tools": server_tools.MAKERS,
    "file search": file_search.MAKERS,
    "remote tools": remote_tools.MAKERS,
}
WEIGHTS = {
    "weft": 70.0,
    "small talk": 26.0,
    "off ground": 34.0,
    "facts": 80.0,
    "arithmetic": 100.0,
    "dates": 26.0,
    "units": 50.0,
    "texts": 60.0,
    "memory": 36.0,
    "passages": 300.0,
    "json": 50.0,
    "tools": 250.0,
    "built-in tools": 44.0,
    "file search": 60.0,
    "remote tools": 60.0,
}
LIGHT = ("weft", "small talk", "off ground", "facts", "arithmetic", "dates", "units", "texts")
BESIDE_TOOLS = ("weft", "small talk", "facts", "texts", "units")  # what no tool is offered for


def made(draw: Draw, skill: str) -> Episode:
    """An episode of the skill that belongs to the training split."""
    makers = SKILLS[skill]
    while True:
        maker = draw.rng.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]
        episode = maker(draw)
        if draw.held_out or not any(exchange.held_out() for exchange in episode.exchanges):
            return episode


def light(draw: Draw, skills: Sequence[str] = LIGHT) -> Episode:
    """An episode that needs neither a system prompt nor tools of its own."""
    return made(draw, draw.rng.choices(skills, [WEIGHTS[name] for name in skills])[0])


def _is_identity(exchange: Exchange) -> bool:
    return exchange.answer == smalltalk.WHO.answer


def _styled_exchanges(draw: Draw, used: styles.Style, count: int) -> list[Exchange]:
    found: list[Exchange] = []
    while len(found) < count:
        if draw.chance(0.4 if used.persona else 0.06):
            found.append(styles.who_are_you(draw, used))
        else:
            found.extend(exchange for exchange in light(draw).exchanges if not _is_identity(exchange))
    return found


def styled(draw: Draw, count: int) -> Episode:
    """A few light exchanges under one system prompt."""
    used = styles.style(draw) if draw.chance(0.85) else styles.plain_style(draw)
    exchanges = _styled_exchanges(draw, used, count)
    if draw.held_out:
        while not exchanges[-1].held_out() and not (used.persona and draw.chance(0.3)):
            exchanges[-1] = (
                styles.who_are_you(draw, used) if used.persona and draw.chance(0.5) else light(draw).exchanges[-1]
            )
            if _is_identity(exchanges[-1]) and used.persona:
                exchanges[-1] = styles.who_are_you(draw, used)
    else:
        exchanges = [exchange for exchange in exchanges if not exchange.held_out()] or [styles.who_are_you(draw, used)]
    skill = "persona" if used.name == "persona" else "system styles"
    return styles.restyled(Episode(skill, tuple(exchanges)), used)


def with_distance(draw: Draw, episode: Episode, count: int) -> Episode:
    """The episode with other exchanges before its last one, so that what was said lies further back."""
    between: list[Exchange] = []
    while len(between) < count:
        between.extend(light(draw).exchanges)
    *first, last = episode.exchanges
    spot = draw.integer(1, len(first)) if first else 0
    return Episode(episode.skill, (*first[:spot], *between, *first[spot:], last), episode.system, episode.tools)


def recalled(draw: Draw, exchanges: list[Exchange]) -> Exchange | None:
    """A question about the conversation itself: the first or the previous message, or the last answer."""
    plain = [exchange for exchange in exchanges if not exchange.calls and len(exchange.user) < 120]
    if not plain or exchanges[-1] is not plain[-1]:
        return None
    kind = draw.integer(0, 2)
    if kind == 0 and exchanges[0] is plain[0]:
        asked = draw.say(
            "[what was my first [question|message]|what did i [ask|say|write] first|what was the first thing i [said|asked|wrote]][?|?|]"
        )
        return Exchange(asked, f"You wrote: {exchanges[0].user}", key="")
    if kind == 1:
        asked = draw.say(
            "[what did i just [say|ask|write]|what was my last [question|message]|repeat my last [question|message]|repeat what i [said|wrote]][?|?|]"
        )
        return Exchange(asked, f"You wrote: {exchanges[-1].user}", key="")
    if len(exchanges[-1].answer) < 160:
        asked = draw.say(
            "[repeat that|say that again|what did you say|can you repeat that|once more please|again please|pardon|come again|repeat your answer|can you say that again][?|?|]"
        )
        return Exchange(asked, exchanges[-1].answer, exchanges[-1].brief, key="")
    return None


def joined(draw: Draw, turns: int) -> Episode:
    """A conversation of about `turns` exchanges over several skills, under one system prompt or none."""
    base: Episode | None = None
    if draw.chance(0.35):
        base = made(draw, draw.choice(["tools", "tools", "built-in tools", "file search", "passages", "passages"]))
    exchanges: list[Exchange] = list(base.exchanges) if base else []
    plain, remembered = base is None or base.system is None, False
    while len(exchanges) < turns:
        pick = draw.rng.random()
        if pick < 0.2:
            extra = with_distance(draw, made(draw, "memory"), draw.integer(0, 3)).exchanges
            if remembered and extra[-1].answer.startswith(memory.NOT_TOLD):
                continue  # an earlier episode may have told it
            remembered = True
        elif pick < 0.28 and plain:
            episode = made(draw, draw.choice(["passages", "json"]))
            if episode.system is not None:
                continue
            extra = episode.exchanges
        elif pick < 0.34 and exchanges:
            question = recalled(draw, exchanges)
            extra = (question,) if question else ()
        else:
            extra = light(draw, BESIDE_TOOLS if base and base.tools else LIGHT).exchanges
        exchanges.extend(extra)
    if base is None and draw.chance(0.25):
        used = styles.style(draw) if draw.chance(0.5) else styles.plain_style(draw)
        exchanges = [styles.who_are_you(draw, used) if _is_identity(exchange) else exchange for exchange in exchanges]
        exchanges = [
            item
            for item in exchanges
            if not item.user.startswith(("repeat", "Repeat")) and not item.answer.startswith("You wrote")
        ]
        recall_free = [
            item for index, item in enumerate(exchanges) if index == 0 or item.answer != exchanges[index - 1].answer
        ]
        return styles.restyled(Episode("conversation", tuple(recall_free)), used)
    return Episode("conversation", tuple(exchanges), base.system if base else None, base.tools if base else ())


def single(draw: Draw) -> Episode:
    episode = made(draw, draw.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
    if episode.skill == "memory" and draw.chance(0.5):
        episode = with_distance(draw, episode, draw.integer(1, 4))
    if episode.system is None and draw.chance(0.15):
        return Episode(episode.skill, episode.exchanges, draw.choice(styles.PLAIN), episode.tools)
    if episode.tools and draw.chance(0.25):
        other = light(draw, BESIDE_TOOLS).exchanges
        exchanges = (*other, *episode.exchanges) if draw.chance(0.6) else (*episode.exchanges, *other)
        return Episode(episode.skill, exchanges, episode.system, episode.tools)
    return episode


def training_episode(draw: Draw, long_share: float) -> Episode:
    """One episode of the mixture; `long_share` is the share of conversations of five to twelve turns."""
    if draw.chance(long_share):
        return joined(draw, draw.integer(5, 12))
    kind = draw.rng.random()
    if kind < 0.46:
        return single(draw)
    if kind < 0.93:
        return styled(draw, draw.choice([1, 1, 2, 2, 3]))
    return joined(draw, draw.integer(2, 4))


def conversation(episode: Episode) -> Conversation:
    found = Conversation(tools=list(episode.tools))
    if episode.system is not None:
        found.system(episode.system)
    for exchange in episode.exchanges:
        found.add(exchange)
    return found


SkillMaker = Callable[[Draw], Episode]
