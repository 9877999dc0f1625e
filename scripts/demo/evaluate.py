"""The held-out scores: exact answers per skill on wordings or values never trained on, and whole conversations."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from scripts.demo import decode
from scripts.demo.chat_format import CALL_CLOSE, CALL_OPEN, END, ROLES, parts
from scripts.demo.dataset import encoded
from scripts.demo.dialogue import Conversation, Episode
from scripts.demo.dialogues import (
    arithmetic,
    extraction,
    file_search,
    mixture,
    offground,
    passages,
    remote_tools,
    server_tools,
    smalltalk,
    tools,
    weft,
)
from scripts.demo.draw import Draw
from scripts.demo.model import ModelConfig, Params
from scripts.demo.probes import PROBES

MOST_TOKENS = 220
BATCH = 32


def _until_held_out(maker: Callable[[Draw], Episode]) -> Callable[[Draw], Episode]:
    def make(draw: Draw) -> Episode:
        while True:
            episode = maker(draw)
            if episode.exchanges[-1].held_out():
                return episode

    return make


def _styled(persona: bool) -> Callable[[Draw], Episode]:
    def make(draw: Draw) -> Episode:
        while True:
            episode = mixture.styled(draw, draw.integer(1, 3))
            if (episode.skill == "persona") == persona:
                return episode

    return make


def _remembered(draw: Draw) -> Episode:
    return mixture.with_distance(draw, mixture.made(draw, "memory"), draw.integer(0, 5))


SKILLS: dict[str, Callable[[Draw], Episode]] = {
    "questions about weft": _until_held_out(weft.weft_question),
    "small talk": _until_held_out(smalltalk.small_talk),
    "facts and tables": _until_held_out(lambda draw: mixture.made(draw, "facts")),
    "off ground": _until_held_out(offground.refusal),
    "addition": _until_held_out(arithmetic.addition),
    "subtraction": _until_held_out(arithmetic.subtraction),
    "multiplication": _until_held_out(arithmetic.multiplication),
    "division": _until_held_out(arithmetic.division),
    "comparison": _until_held_out(arithmetic.comparison),
    "dates": _until_held_out(lambda draw: mixture.made(draw, "dates")),
    "units": _until_held_out(lambda draw: mixture.made(draw, "units")),
    "own words": lambda draw: mixture.made(draw, "texts"),
    "memory": _remembered,
    "system styles": _styled(False),
    "persona": _styled(True),
    "passages": passages.present,
    "passages, absent": passages.absent,
    "json": extraction.extraction,
    "tools": tools.known_tools,
    "tools, unseen": tools.unseen_tools,
    "tools, remote": remote_tools.remote_tools,
    "built-in tools": _until_held_out(lambda draw: mixture.made(draw, "built-in tools")),
    "file search": file_search.search,
}


@dataclass
class Score:
    """How many of `total` were right, and some that were wrong: (prompt, expected, got)."""

    right: int = 0
    total: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)

    def count(self, right: bool, prompt: str, expected: str, got: str) -> None:
        self.right += right
        self.total += 1
        if not right:
            self.wrong.append((prompt, expected, got))

    @property
    def share(self) -> float:
        return self.right / max(1, self.total)


class Judge:
    """One model with its tokenizer, answering dialogues."""

    def __init__(self, config: ModelConfig, params: Params, pieces: SentencePieceProcessor) -> None:
        self.config, self.params, self.pieces = config, params, pieces
        self.end = pieces.piece_to_id(END)

    def answers(self, dialogues: list[Conversation]) -> list[str]:
        """The next assistant turn of each dialogue."""
        opening = self.pieces.piece_to_id(ROLES["assistant"])
        prompts = [[*encoded(self.pieces, dialogue)[0], opening] for dialogue in dialogues]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        found = [""] * len(prompts)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            padded = [prompts[row] for row in rows] + [prompts[rows[0]]] * (
                BATCH - len(rows)
            )  # one shape for all batches
            for row, ids in zip(
                rows, decode.greedy(self.config, self.params, padded, self.end, MOST_TOKENS), strict=False
            ):
                found[row] = self.pieces.decode(ids)
        return found


@dataclass(frozen=True)
class Item:
    """A dialogue cut before an assistant turn, and that turn's text."""

    dialogue: Conversation
    expected: str


def items_of(episode: Episode) -> list[Item]:
    """The assistant turns of the last exchange: its calls, then its answer."""
    whole = mixture.conversation(episode)
    turns = 1 + len(episode.exchanges[-1].calls)
    spots = [index for index, message in enumerate(whole.messages) if message["role"] == "assistant"][-turns:]
    return [Item(Conversation(whole.messages[:spot], whole.tools), assistant_text(whole, spot)) for spot in spots]


def assistant_text(whole: Conversation, spot: int) -> str:
    alone = Conversation([whole.messages[spot]])
    return parts(alone)[-1].text.removesuffix(END)


def same(expected: str, got: str) -> bool:
    """Exact equality; calls and JSON are compared as values."""
    if expected.startswith((CALL_OPEN, "{")):
        try:
            return json.loads(_bare(expected)) == json.loads(_bare(got))
        except json.JSONDecodeError:
            return False
    return expected == got.strip()


def _bare(text: str) -> str:
    return text.strip().removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE)


def skill_scores(judge: Judge, count: int, seed: int, only: list[str] | None = None) -> dict[str, Score]:
    """Exact scores of `count` held-out episodes a skill; with tools, the call and the answer must both be right."""
    scores: dict[str, Score] = {}
    for name in only or SKILLS:
        draw = Draw(seed, held_out=True)
        groups = [items_of(SKILLS[name](draw)) for _ in range(count)]
        flat = [item for group in groups for item in group]
        got = iter(judge.answers([item.dialogue for item in flat]))
        score = scores[name] = Score()
        for group in groups:
            answers = [next(got) for _ in group]
            good = all(same(item.expected, answer) for item, answer in zip(group, answers, strict=True))
            prompt = "".join(part.text for part in parts(group[-1].dialogue))
            score.count(good, prompt, " || ".join(item.expected for item in group), " || ".join(answers))
    return scores


def conversation_scores(judge: Judge, count: int, seed: int, turns: int = 10) -> dict[str, Score]:
    """Conversations in which the model goes on from its own answers: does it keep the form, is each turn right?"""
    draw = Draw(seed, held_out=True)
    episodes = [mixture.joined(draw, turns) for _ in range(count)]
    truths = [mixture.conversation(episode) for episode in episodes]
    played = [Conversation(tools=truth.tools) for truth in truths]
    scores = {"form over whole conversations": Score(), "turns of conversations": Score()}
    broken = [False] * count
    for spot in range(max(len(truth.messages) for truth in truths)):
        asked = [
            row
            for row, truth in enumerate(truths)
            if spot < len(truth.messages) and truth.messages[spot]["role"] == "assistant"
        ]
        got = dict(zip(asked, judge.answers([played[row] for row in asked]), strict=True)) if asked else {}
        for row, truth in enumerate(truths):
            if spot >= len(truth.messages):
                continue
            message = dict(truth.messages[spot])
            if row in got:
                expected = assistant_text(truth, spot)
                called = bool(message.get("tool_calls"))
                broken[row] |= (
                    not got[row].strip()
                    or len(judge.pieces.encode(got[row])) >= MOST_TOKENS
                    or any(marker in got[row] for marker in ROLES.values())
                )
                scores["turns of conversations"].count(same(expected, got[row]), "", expected, got[row])
                if not called:
                    message["content"] = got[row]
            played[row].messages.append(message)
    for row, bad in enumerate(broken):
        scores["form over whole conversations"].count(
            not bad, "".join(part.text for part in parts(played[row])), "", ""
        )
    return scores


def probe_scores(judge: Judge) -> Score:
    """Hand-written messages as people type them, none of them made by a template; a pattern says what is right."""
    score = Score()
    dialogues: list[Conversation] = []
    for probe in PROBES:
        dialogue = Conversation(tools=[server_tools.SCHEMAS[name] for name in probe.tools])
        if probe.system:
            dialogue.system(probe.system)
        dialogue.messages += [
            {"role": "user" if index % 2 == 0 else "assistant", "content": text}
            for index, text in enumerate(probe.turns)
        ]
        dialogues.append(dialogue)
    for probe, got in zip(PROBES, judge.answers(dialogues), strict=True):
        score.count(probe.matches(got), " | ".join(probe.turns), probe.pattern, got)
    return score


def agreement(judge: Judge, draft: Judge, count: int, seed: int) -> float:
    """The share of the model's own greedy tokens that the draft, given the same text, would have chosen."""
    draw = Draw(seed, held_out=True)
    makers = list(SKILLS.values())
    dialogues = [items_of(makers[index % len(makers)](draw))[0].dialogue for index in range(count)]
    agreed = total = 0
    for dialogue, answer in zip(dialogues, judge.answers(dialogues), strict=True):
        prompt = [*encoded(judge.pieces, dialogue)[0], judge.pieces.piece_to_id(ROLES["assistant"])]
        tokens = [*prompt, *judge.pieces.encode(answer), judge.end]
        chosen = decode.next_tokens(draft.config, draft.params, tokens)
        spots = range(len(prompt), len(tokens))
        agreed += sum(chosen[spot - 1] == tokens[spot] for spot in spots)
        total += len(spots)
    return agreed / total


def write(path: Path, scores: dict[str, Score]) -> None:
    table = {
        name: {"right": score.right, "of": score.total, "share": round(score.share, 3)}
        for name, score in scores.items()
    }
    path.write_text(json.dumps(table, indent=1) + "\n")
