"""Streams under grammars, through the real scheduler, programs and pages of a tiny Llama with random weights: what they
say always matches, whatever happens around them, and those beside them say what they would have said alone."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.grammars import Grammars
from serving.engine.request import FinishReason, GenerateRequest, GrammarKind, GrammarSpec, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from tests.fakes.tiny_model import MAX_MODEL_LEN, NUM_PAGES, PAGE_SIZE, VOCAB_SIZE, tiny_executor
from tests.fakes.tiny_vocabulary import END, THOUGHT, text_of, tiny_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [12, 345, None]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
REGEX = r"(yes|no), [a-z]{3,6} [0-9]{2,4}"
GRAMMARS = {
    "regex": GrammarSpec(kind=GrammarKind.REGEX, text=REGEX),
    "schema": GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA)),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=120, eos_token_ids=(END,))
SAMPLED = dataclasses.replace(GREEDY, temperature=1.0, seed=5)
PENALISED = dataclasses.replace(SAMPLED, repetition_penalty=1.2, presence_penalty=0.3, logit_bias=((20, 3.0),))
SAMPLING = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    yield grammars
    grammars.close()


def request(
    name: str, grammar: GrammarSpec | None, sampling: SamplingParams = GREEDY, length: int = 21
) -> GenerateRequest:
    prompt = np.random.default_rng(length).integers(0, VOCAB_SIZE, length).tolist()
    return GenerateRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling, grammar=grammar)


class Run:
    """One scheduler over the shared executor."""

    def __init__(self, grammars: Grammars, pages: int = NUM_PAGES, budget: int = 128) -> None:
        pool = BlockPool(pages, PAGE_SIZE)
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=32,
            max_num_batched_tokens=budget,
            max_waiting=100,
            pool=pool,
            vocab_size=VOCAB_SIZE,
        )
        self.loop = EngineLoop(self.scheduler, tiny_executor(), now=lambda: 0.0)
        self.ends: dict[str, TokenEvent] = {}
        self.events: dict[str, list[TokenEvent]] = {}
        self._grammars = grammars

    def tokens(self, *requests: GenerateRequest) -> dict[str, list[int]]:
        for one in requests:
            constraint = None
            if one.grammar is not None:
                constraint = asyncio.run(self._grammars.constraint(one.grammar, one.output_token_ids))
            self.scheduler.add(one, 0.0, constraint)
            self.events[one.request_id] = []
        while not self.loop.idle:
            for event in self.loop.step():
                self.events[event.request_id].append(event)
                if event.finish_reason is not None:
                    self.ends[event.request_id] = event
        self.scheduler.check()
        return {name: [t for e in events for t in e.token_ids] for name, events in self.events.items()}


def assert_matches(kind: str, tokens: list[int], end: TokenEvent) -> None:
    assert end.finish_reason is FinishReason.STOP, end
    text = text_of(tokens)
    if kind == "regex":
        assert re.fullmatch(REGEX, text), text
    else:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.fixture(scope="module")
def alone(grammars: Grammars) -> dict[tuple[str, str], list[int]]:
    made = {}
    for kind, grammar in GRAMMARS.items():
        for how, sampling in SAMPLING.items():
            made[kind, how] = Run(grammars).tokens(request("watched", grammar, sampling))["watched"]
    return made


@pytest.mark.parametrize("how", SAMPLING)
@pytest.mark.parametrize("kind", GRAMMARS)
def test_what_is_said_under_a_grammar_matches(kind: str, how: str, grammars: Grammars) -> None:
    run = Run(grammars)
    sampling = SAMPLING[how]
    made = run.tokens(
        *(
            request(f"r{seed}", GRAMMARS[kind], dataclasses.replace(sampling, seed=seed), length=9 + seed)
            for seed in range(6)
        )
    )
    assert len({tuple(tokens) for tokens in made.values()}) > 1
    for name, tokens in made.items():
        assert_matches(kind, tokens, run.ends[name])


def test_two_grammars_and_free_streams_in_one_batch_do_not_touch_each_other(
    grammars: Grammars, alone: dict[tuple[str, str], list[int]]
) -> None:
    free = dataclasses.replace(SAMPLED, max_tokens=40)
    before = Run(grammars).tokens(request("free", None, free, 30), request("plain", None, GREEDY, 31))
    run = Run(grammars)
    made = run.tokens(
        request("free", None, free, 30),
        request("regex", GRAMMARS["regex"], SAMPLED),
        request("plain", None, GREEDY, 31),
        request("schema", GRAMMARS["schema"], PENALISED),
    )
    assert {name: made[name] for name in before} == before
    assert made["regex"] == alone["regex", "sampled"]
    assert made["schema"] == alone["schema", "penalised"]


def test_without_grammars_no_mask_is_computed_and_no_step_waits(grammars: Grammars) -> None:
    run = Run(grammars)
    run.tokens(request("free", None, dataclasses.replace(SAMPLED, max_tokens=8)))
    assert run.loop.masks.computed == 0


@pytest.mark.parametrize("kind", GRAMMARS)
def test_preempted_and_computed_again_a_stream_says_the_same(
    kind: str, grammars: Grammars, alone: dict[tuple[str, str], list[int]]
) -> None:
    run = Run(grammars, pages=12)
    long = dataclasses.replace(SAMPLED, max_tokens=40, eos_token_ids=())
    others = [request(f"other-{i}", None, long, 15 + i) for i in range(3)]
    made = run.tokens(*others, request("watched", GRAMMARS[kind], dataclasses.replace(SAMPLED, max_tokens=70)))
    assert run.scheduler.stats.preemptions > 0
    assert made["watched"] == alone[kind, "sampled"]


@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_stream_that_goes_on_in_another_engine_after_any_of_its_tokens_says_the_same(
    kind: str, grammars: Grammars, alone: dict[tuple[str, str], list[int]]
) -> None:
    whole = alone[kind, "penalised"]
    for count in range(1, len(whole), 3):
        resumed = dataclasses.replace(
            request("watched", GRAMMARS[kind], PENALISED), output_token_ids=tuple(whole[:count])
        )
        assert Run(grammars).tokens(resumed)["watched"] == whole[count:]


def test_log_probabilities_are_those_of_the_raw_logits(grammars: Grammars) -> None:
    run = Run(grammars)
    asked = dataclasses.replace(GREEDY, logprobs=3)
    run.tokens(request("watched", GRAMMARS["schema"], asked))
    drawn = [entry for event in run.events["watched"] for entry in event.logprobs]
    assert drawn
    assert any(entry.rank > 1 for entry in drawn)  # what the model would rather have said is still told
    assert all(list(entry.top_logprobs) == sorted(entry.top_logprobs, reverse=True) for entry in drawn)


def test_after_its_reasoning_a_stream_is_bound(grammars: Grammars) -> None:
    grammar = dataclasses.replace(GRAMMARS["regex"], starts_after=(THOUGHT,))
    wish = dataclasses.replace(SAMPLED, max_tokens=200, logit_bias=((THOUGHT, 4.0), (END, 100.0)))
    run = Run(grammars)
    tokens = run.tokens(request("watched", grammar, wish))["watched"]
    thought = tokens.index(THOUGHT)
    assert END not in tokens[:thought]
    assert_matches("regex", tokens[thought + 1 :], run.ends["watched"])


def test_a_grammar_that_meets_its_limit_ends_its_own_stream_alone(
    grammars: Grammars,
) -> None:
    exploding = GrammarSpec(kind=GrammarKind.REGEX, text="((.{1,60} ?){1,60}[a-f]{1,9}){1,60}Q")
    beside = request("free", None, dataclasses.replace(SAMPLED, max_tokens=40), 30)
    expected = Run(grammars).tokens(beside)["free"]
    run = Run(grammars)
    made = run.tokens(beside, request("exploding", exploding, dataclasses.replace(SAMPLED, max_tokens=200)))
    assert made["free"] == expected
    end = run.ends["exploding"]
    assert end.finish_reason is FinishReason.ERROR
    assert end.error_param == "grammar"
    assert "limit" in (end.error or "") or "too many" in (end.error or "")


def test_an_aborted_stream_leaves_the_step_in_flight_to_the_others(
    grammars: Grammars, alone: dict[tuple[str, str], list[int]]
) -> None:
    run = Run(grammars)
    for name in ("leaves", "stays"):
        constraint = asyncio.run(grammars.constraint(GRAMMARS["schema"]))
        run.scheduler.add(request(name, GRAMMARS["schema"], SAMPLED), 0.0, constraint)
    made: list[int] = []
    for step in range(200):
        made += [token for event in run.loop.step() if event.request_id == "stays" for token in event.token_ids]
        if step == 4:
            run.scheduler.abort("leaves")
        if run.loop.idle:
            break
    assert made == alone["schema", "sampled"]


PHRASES = GrammarSpec(
    kind=GrammarKind.REGEX, text=r"(yes, of course|no, certainly not)( and [a-z]{2} again and again){3}"
)


@pytest.mark.parametrize("pages", [NUM_PAGES, 40])
@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_tokens_that_a_grammar_leaves_no_choice_for_are_fed_and_are_those_that_would_be_drawn(
    kind: str, pages: int, grammars: Grammars
) -> None:
    drawn, fed = Run(grammars), Run(grammars, pages=pages)
    others = [request(f"other-{i}", None, SAMPLED, 90) for i in range(3)]
    scored = dataclasses.replace(SAMPLING[kind], logprobs=0)  # whose logprobs are wanted must be drawn
    expected = drawn.tokens(request("watched", PHRASES, scored))["watched"]
    assert fed.tokens(*others, request("watched", PHRASES, SAMPLING[kind]))["watched"] == expected
    assert drawn.scheduler.stats.fed_tokens == 0
    assert fed.scheduler.stats.fed_tokens > len(expected) / 2
    fed.scheduler.check()


def test_what_is_fed_stops_before_the_last_token_that_a_stream_may_have(grammars: Grammars) -> None:
    for most in range(2, 30):
        short = dataclasses.replace(GREEDY, max_tokens=most)
        run = Run(grammars)
        made = run.tokens(request("watched", PHRASES, short))["watched"]
        assert len(made) == most
        assert run.scheduler.stats.used_pages == 0
