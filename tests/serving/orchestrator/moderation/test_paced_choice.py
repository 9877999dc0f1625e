"""One answer behind its judges: what is shown, how far behind, and where it is cut, whatever pieces it comes in."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Any

import pytest

from serving.engine.request import FinishReason, SamplingParams, TokenEvent
from serving.generation.answers.answer_form import AnswerForm
from serving.generation.choice import Choice, ChoiceStep
from serving.generation.request import PreparedPrompt
from serving.generation.stop_strings import StopStrings
from serving.generation.tokenizer import Tokenizer
from serving.orchestrator.moderation.judges.judge import Finding, Passage
from serving.orchestrator.moderation.paced_choice import PacedChoice, Prompt, Stretch
from serving.orchestrator.moderation.policy import Policy, Verdict
from serving.settings.moderation import PolicyConfig, RuleConfig
from tests.serving.api.conftest import tokenizer

__all__ = ["tokenizer"]

BAD = "wicked"
POLICY = PolicyConfig(rules=(RuleConfig(category="violence", output="cut"),), judge_every_tokens=4, hold_back_tokens=16)
TEXT = "The quick brown fox is wicked and jumps over the lazy dog."


class World:
    def __init__(self, tokenizer: Tokenizer, text: str = TEXT, **policy: Any) -> None:
        self.tokenizer = tokenizer
        self.ids = tokenizer.encode(text, add_special_tokens=False)
        fields = {name: getattr(POLICY, name) for name in ("rules", "judge_every_tokens", "hold_back_tokens")}
        self.policy = Policy.of(PolicyConfig(**{**fields, **policy}), "p")
        self.passages: list[Passage] = []
        self.knows_places = True
        self.has_literals = False
        self.answers: asyncio.Semaphore | None = None

    async def judged(self, stretch: Stretch) -> Verdict:
        if self.answers is not None:
            await self.answers.acquire()
        self.passages.append(stretch.written)
        found: list[Finding] = []
        if (at := stretch.written.text.find(BAD)) >= 0:
            found.append(Finding("violence", 1.0, at if self.knows_places else None))
        if stretch.read is not None and (at := stretch.read.text.find(BAD)) >= 0:
            found.append(Finding("violence", 1.0, stretch.places[at] if self.knows_places else None))
        return self.policy.verdict(found, "output")

    def choice(self, **fields: Any) -> Choice:
        prepared = PreparedPrompt(
            **{
                "request_id": "r",
                "prompt_token_ids": (1, 2),
                "prompt_text": None,
                "sampling": SamplingParams(max_tokens=500),
                "n": 1,
                "stop": (),
                "include_stop_str_in_output": False,
                "skip_special_tokens": True,
                "kept_special_tokens": frozenset(),
                "cache_salt": "",
                **fields,
            }
        )
        return Choice(0, prepared, StopStrings(prepared.stop), self.tokenizer)

    def events(self, chunk: int = 1, first: int = 0) -> list[TokenEvent]:
        parts = [self.ids[at : at + chunk] for at in range(first, len(self.ids), chunk)]
        return [
            TokenEvent(
                request_id="r",
                token_ids=tuple(part),
                finish_reason=FinishReason.LENGTH if at == len(parts) - 1 else None,
                cached_tokens=1 if at == 0 and first == 0 else None,
            )
            for at, part in enumerate(parts)
        ]

    async def run(
        self, events: Iterable[TokenEvent], past: Iterable[TokenEvent] = (), *, waits: bool = False, **fields: Any
    ) -> list[ChoiceStep]:
        source_choice = self.choice(**fields)
        for event in past:
            source_choice.feed(event)
        choice, prompt = self.choice(**fields), Prompt(2, "hi")
        paced = PacedChoice(0, choice, self.policy, self.judged, prompt, waits=waits, has_literals=self.has_literals)
        paced.recall(past)
        self.taken = 0
        self.closed = False

        async def source() -> AsyncGenerator[ChoiceStep, None]:
            try:
                for event in events:
                    self.taken += len(event.token_ids)
                    delta = source_choice.feed(event)
                    yield ChoiceStep(0, event, delta)
                    if delta is not None and delta.finish_reason is not None:
                        return
            finally:
                self.closed = True

        self.held = 0
        steps: list[ChoiceStep] = []
        shown = 0
        async for step in paced.steps(source()):
            self.held = max(self.held, self.taken - shown)
            shown += len(step.event.token_ids)
            steps.append(step)
        return steps


def text_of(steps: list[ChoiceStep]) -> str:
    return "".join(step.delta.text for step in steps if step.delta is not None)


def tokens_of(steps: list[ChoiceStep]) -> list[int]:
    return [token for step in steps for token in step.event.token_ids]


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_clean_answer_comes_whole(tokenizer: Tokenizer, chunk: int, waits: bool) -> None:
    world = World(tokenizer, TEXT.replace(BAD, "kind"))
    steps = await world.run(world.events(chunk), waits=waits)
    assert text_of(steps) == TEXT.replace(BAD, "kind")
    assert tokens_of(steps) == world.ids
    assert [step.delta.finish_reason for step in steps if step.delta][-1] is FinishReason.LENGTH
    assert "".join(passage.text[len(passage.text) - passage.fresh :] for passage in world.passages) == text_of(steps)


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_cut_falls_at_the_same_place_whatever_the_pieces(tokenizer: Tokenizer, chunk: int, waits: bool) -> None:
    world = World(tokenizer)
    steps = await world.run(world.events(chunk), waits=waits)
    assert text_of(steps) == TEXT.partition(BAD)[0]
    last = steps[-1]
    assert last.event.finish_reason is FinishReason.CONTENT_FILTER
    assert last.delta is not None
    assert last.delta.flags == last.event.flags == (("violence", 1.0),)
    assert last.delta.usage.completion_tokens == len(tokens_of(steps))
    assert [step.event.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert world.closed


async def test_without_a_place_nothing_is_shown_after_what_was_judged_before(tokenizer: Tokenizer) -> None:
    world = World(tokenizer)
    world.knows_places = False
    steps = await world.run(world.events())
    found_at = -(-(TEXT.index(BAD) + len(BAD)) // 4) * 4
    assert text_of(steps) == TEXT[: found_at - 4 - (16 - 2 * 4)]


async def test_no_more_than_the_hold_back_waits_unless_the_engine_sends_more_at_once(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, "x" * 200)
    await world.run(world.events())
    assert world.held <= 16


async def test_a_slow_judge_holds_the_answer_within_the_hold_back(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, "x" * 200)
    world.answers = asyncio.Semaphore(0)
    running = asyncio.ensure_future(world.run(world.events(), waits=True))
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.taken == 8  # a passage is in judgement, and the next one is complete
    for _ in range(51):
        world.answers.release()
    steps = await running
    assert tokens_of(steps) == world.ids
    assert world.held <= 16


async def test_with_a_lead_tokens_come_at_once_and_no_more_than_so_many_leak(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, lead_tokens=6)
    world.knows_places = False
    steps = await world.run(world.events())
    assert len(steps[0].event.token_ids) == 1
    leaked = text_of(steps).partition(BAD)[2]
    assert len(leaked) <= 6


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("spelled", [_escaped(BAD), "wi\\u0063ked", "\\u0077icke\\u0064"])
async def test_an_escaped_word_is_cut_where_its_first_letter_stands(
    tokenizer: Tokenizer, chunk: int, waits: bool, spelled: str
) -> None:
    """Each escape is six tokens here: the hold-back would end within the second if it counted them all."""
    world = World(tokenizer, TEXT.replace(BAD, spelled))
    world.has_literals = True
    steps = await world.run(world.events(chunk), waits=waits)
    assert text_of(steps) == TEXT.partition(BAD)[0]
    assert steps[-1].event.finish_reason is FinishReason.CONTENT_FILTER


async def test_an_answer_that_no_program_reads_is_judged_as_it_stands(tokenizer: Tokenizer) -> None:
    text = TEXT.replace(BAD, _escaped(BAD))
    world = World(tokenizer, text)
    assert text_of(await world.run(world.events())) == text


async def test_text_without_escapes_is_held_no_longer_where_a_program_reads_it(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, TEXT.replace(BAD, "kind") * 4)
    seen = []
    for world.has_literals in (False, True):
        seen.append([(step.event.token_ids, step.delta) for step in await world.run(world.events())])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("after", range(0, 24, 5))
async def test_a_resumed_answer_with_escapes_is_cut_where_the_first_was(tokenizer: Tokenizer, after: int) -> None:
    world = World(tokenizer, TEXT.replace("quick", "\\u0071uick").replace(BAD, _escaped(BAD)))
    world.has_literals = True
    whole = tokens_of(await world.run(world.events(3)))
    past = [TokenEvent(request_id="r", token_ids=(token,)) for token in whole[:after]]
    rest = tokens_of(await world.run(world.events(2, first=after), past))
    assert [*whole[:after], *rest] == whole


@pytest.mark.parametrize("after", range(0, 24))
@pytest.mark.parametrize("knows_places", [True, False])
async def test_a_resumed_answer_is_cut_where_the_first_was(
    tokenizer: Tokenizer, after: int, knows_places: bool
) -> None:
    world = World(tokenizer)
    world.knows_places = knows_places
    whole = await world.run(world.events(3))
    seen = tokens_of(whole)[:after]
    after = len(seen)
    past = [TokenEvent(request_id="r", token_ids=(token,)) for token in seen]
    rest = await world.run(world.events(2, first=after), past)
    assert seen + tokens_of(rest) == tokens_of(whole)
    assert rest[-1].event.finish_reason is FinishReason.CONTENT_FILTER


async def test_what_is_logged_makes_the_same_deltas_again(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, TEXT.replace("fox", "f\N{LATIN SMALL LETTER E WITH ACUTE}x"))
    for fields in ({}, {"stop": ("never",)}):
        steps = await world.run(world.events(5), **fields)
        reader = world.choice(**fields)
        again = [reader.feed(step.event) for step in steps]
        assert [delta for delta in again if delta] == [step.delta for step in steps if step.delta]


@pytest.mark.parametrize("text", [TEXT, f"{BAD} from the start"])
async def test_a_cut_says_what_a_reader_of_the_log_would(tokenizer: Tokenizer, text: str) -> None:
    """Whoever reads the answer as it comes, and whoever reads its log, are told the same of how it was made."""
    world = World(tokenizer, text)
    fields = {"answer": AnswerForm(reasoning="think")}
    events = [replace(event, guessed_tokens=2, accepted_tokens=1, weights="w1") for event in world.events(3)]
    steps = await world.run(events, **fields)
    reader = world.choice(**fields)
    again = [reader.feed(step.event) for step in steps]
    assert [delta for delta in again if delta] == [step.delta for step in steps if step.delta]
    last = steps[-1].delta
    assert last is not None
    assert (last.finish_reason, last.weights) == (FinishReason.CONTENT_FILTER, "w1")
    assert last.usage.guessed_tokens == 2 * last.usage.accepted_tokens > 0


async def test_right_guesses_behind_a_stop_string_are_not_counted(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, "The quick brown fox")
    (event,) = world.events(64)
    whole = replace(event, guessed_tokens=len(event.token_ids), accepted_tokens=len(event.token_ids) - 1)
    steps = await world.run([whole], stop=("The",))
    usage = steps[-1].delta.usage if steps[-1].delta else None
    assert usage is not None
    assert usage.accepted_tokens <= usage.completion_tokens < whole.accepted_tokens


async def test_a_stop_string_ends_it_before_what_would_have_cut_it(tokenizer: Tokenizer) -> None:
    world = World(tokenizer)
    steps = await world.run(world.events(64), stop=("fox",))
    assert text_of(steps) == "The quick brown "
    assert steps[-1].delta is not None
    assert (steps[-1].delta.finish_reason, steps[-1].delta.stop_reason) == (FinishReason.STOP, "fox")


async def test_the_first_event_of_an_answer_cut_at_once_has_what_is_said_once(tokenizer: Tokenizer) -> None:
    world = World(tokenizer, f"{BAD} from the start")
    (step,) = await world.run(world.events())
    assert step.delta is not None
    assert step.delta.usage.cached_tokens == step.event.cached_tokens == 1
    assert step.delta.usage.completion_tokens == 0
    assert step.event.finish_reason is FinishReason.CONTENT_FILTER
