"""A request gives the same tokens with guesses as without, however many of them are right."""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.interface import Model
from pallas_kernels.dispatch import attention_body
from serving.engine.block_pool import BlockPool
from serving.engine.drafter import Drafter
from serving.engine.engine import EngineLoop
from serving.engine.executor import Executor
from serving.engine.grammars import Grammars
from serving.engine.limits import ExecutorLimits
from serving.engine.request import FinishReason, GenerateRequest, GrammarKind, GrammarSpec, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.sequence import Sequence as LiveSequence
from serving.engine.speculation.guessing import Lookup
from serving.engine.speculation.speculator import Speculator
from serving.engine.verifier import agreed
from sharding.mesh import one_device
from tests.fakes.tiny_model import MAX_MODEL_LEN, PAGE_SIZE, VOCAB_SIZE, tiny_llama
from tests.fakes.tiny_vocabulary import END, THOUGHT, tiny_vocabulary

DEPTH = 3
MAX_NUM_SEQS = 8
NUM_PAGES = 128
BUCKETS = (16,)
ROUNDING = 1e-4  # of a log-probability: two best tokens nearer than this may change places with the order of a sum


@cache
def executor() -> Executor:
    model, shape = tiny_llama()
    limits = ExecutorLimits(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        token_buckets=BUCKETS,
        guesses=DEPTH,
    )
    attention, pages = attention_body("reference"), jnp.dtype("float32")
    drafter = Drafter(similar(model), shape, limits, attention, pages, one_device())
    return Executor(model, shape, limits, attention, pages, drafter=drafter)


def similar(model: Model) -> Model:
    """One that often says the same, and not always."""
    graph, state = nnx.split(model)
    rng = np.random.default_rng(0)
    blurred = jax.tree.map(lambda x: x * rng.normal(1.0, 0.1, x.shape).astype(np.float32), state)
    return nnx.merge(graph, blurred)


class Oracle:
    """Knows what a stream will say, and says it wrong now and then."""

    def __init__(self, said: list[int], wrong: float, seed: int) -> None:
        self._said = said
        self._wrong = wrong
        self._random = random.Random(seed)

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        said = self._said[len(tokens) : len(tokens) + most]
        return tuple((t + 1) % VOCAB_SIZE if self._random.random() < self._wrong else t for t in said)


def oracle(said: dict[str, list[int]], wrong: float = 0.3) -> Callable[[LiveSequence], Lookup]:
    """`said`: each stream's whole text."""
    return lambda sequence: Oracle(said[sequence.request_id], wrong, sequence.arrival_number)


class Run:
    """One scheduler over the shared executor. `lookup`: what guesses; "draft": the draft model; None: nobody."""

    def __init__(
        self, lookup: Callable[[LiveSequence], Lookup] | Literal["draft"] | None, pages: int = NUM_PAGES
    ) -> None:
        speculator = None
        if lookup is not None:
            found = None if lookup == "draft" else lookup
            speculator = Speculator(most=DEPTH, most_tokens=16, buckets=BUCKETS, lookup=found, adapts=False)
        self.speculator = speculator
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=BUCKETS[-1],
            max_waiting=100,
            pool=BlockPool(pages, PAGE_SIZE),
            vocab_size=VOCAB_SIZE,
            token_buckets=BUCKETS,
            speculator=speculator,
        )
        self.loop = EngineLoop(self.scheduler, executor(), now=lambda: 0.0)

    def events(
        self, requests: Sequence[GenerateRequest], grammars: Grammars | None = None
    ) -> dict[str, list[TokenEvent]]:
        for one in requests:
            constraint = None
            if one.grammar is not None and grammars is not None:
                constraint = asyncio.run(grammars.constraint(one.grammar))
            self.scheduler.add(one, 0.0, constraint)
        made: dict[str, list[TokenEvent]] = {one.request_id: [] for one in requests}
        while not self.loop.idle:
            for event in self.loop.step():
                made[event.request_id].append(event)
            self.scheduler.check()
        assert self.scheduler.stats.used_pages == 0
        return made


def mix(seed: int, count: int) -> list[GenerateRequest]:
    """Requests of every kind, drawn at random."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40)))
        greedy = rng.random() < 0.4
        penalised, worded = rng.random() < 0.4, rng.random() < 0.3
        ends = tuple(rng.sample(range(VOCAB_SIZE), 3)) if rng.random() < 0.5 else ()
        sampling = SamplingParams(
            temperature=0.0 if greedy else rng.choice((0.5, 1.0)),
            seed=rng.getrandbits(40),
            top_k=rng.choice((0, 0, 20)),
            top_p=rng.choice((1.0, 0.9)),
            repetition_penalty=1.4 if penalised else 1.0,
            frequency_penalty=0.5 if penalised else 0.0,
            presence_penalty=0.3 if penalised else 0.0,
            bad_words=((5, 6), (7,)) if worded else (),
            logit_bias=((3, 2.0),) if worded else (),
            eos_token_ids=ends,
            min_tokens=rng.choice((0, 12)) if ends else 0,
            logprobs=rng.choice((None, None, 0, 3)),
            max_tokens=rng.randint(1, 30),
        )
        requests.append(GenerateRequest(request_id=f"stream-{number}", prompt_token_ids=prompt, sampling=sampling))
    return requests


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def whole_texts(requests: Sequence[GenerateRequest]) -> dict[str, list[int]]:
    made = Run(None).events(requests)
    return {one.request_id: [*one.prompt_token_ids, *tokens_of(made[one.request_id])] for one in requests}


@pytest.mark.parametrize("pages", [NUM_PAGES, 24])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0, None], ids=["right", "mixed", "wrong", "drafted"])
def test_any_mix_gives_the_tokens_and_scores_that_it_gives_without_guesses(wrong: float | None, pages: int) -> None:
    requests = mix(pages, 10)
    said = Run(None).events(requests)
    texts = {one.request_id: [*one.prompt_token_ids, *tokens_of(said[one.request_id])] for one in requests}
    run = Run("draft" if wrong is None else oracle(texts, wrong), pages)
    made = run.events(requests)
    assert run.speculator is not None
    assert run.speculator.guessed > 15
    assert (run.speculator.accepted > 0) == (wrong != 1.0)
    assert (run.speculator.accepted < run.speculator.guessed) == (wrong != 0.0)
    for one in requests:
        before, after = said[one.request_id], made[one.request_id]
        assert tokens_of(after) == tokens_of(before), one
        assert after[-1].finish_reason == before[-1].finish_reason
        assert after[-1].stop_token_id == before[-1].stop_token_id
        scored = [[score for event in events for score in event.logprobs] for events in (before, after)]
        assert [s.token_id for s in scored[1]] == [s.token_id for s in scored[0]]
        np.testing.assert_allclose([s.logprob for s in scored[1]], [s.logprob for s in scored[0]], atol=ROUNDING)
        assert [len(s.top_token_ids) for s in scored[1]] == [len(s.top_token_ids) for s in scored[0]]
    events = [event for stream in made.values() for event in stream]
    assert sum(event.guessed_tokens for event in events) == run.speculator.guessed
    assert sum(event.accepted_tokens for event in events) <= run.speculator.accepted


@pytest.mark.parametrize("guesser", ["right", "mixed", "drafted"])
def test_grammars_bind_guesses_too(guesser: str) -> None:
    texts: dict[str, list[int]] = {}
    spec = GrammarSpec(kind=GrammarKind.REGEX, text=r"(yes|no), [a-z]{3,6} [0-9]{2,4}")
    after = dataclasses.replace(spec, starts_after=(THOUGHT,))
    requests = [
        GenerateRequest(
            request_id=f"stream-{number}",
            prompt_token_ids=tuple(range(number + 1, number + 20)),
            sampling=SamplingParams(
                temperature=number % 2 * 1.0,
                seed=number,
                max_tokens=60,
                eos_token_ids=(END,),
                logprobs=1,
                logit_bias=((THOUGHT, 4.0),),
                frequency_penalty=0.2 * (number % 3),
            ),
            grammar=(spec, after, None)[number % 3],
        )
        for number in range(6)
    ]
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    try:
        said = Run(None).events(requests, grammars)
        texts |= {one.request_id: [*one.prompt_token_ids, *tokens_of(said[one.request_id])] for one in requests}
        run = Run("draft" if guesser == "drafted" else oracle(texts, 0.0 if guesser == "right" else 0.4))
        made = run.events(requests, grammars)
    finally:
        grammars.close()
    assert run.speculator is not None
    assert run.speculator.accepted > 0
    for one in requests:
        assert tokens_of(made[one.request_id]) == tokens_of(said[one.request_id]), one
        assert made[one.request_id][-1].finish_reason == said[one.request_id][-1].finish_reason


def test_right_guesses_save_steps() -> None:
    request = dataclasses.replace(mix(3, 1)[0], sampling=SamplingParams(temperature=1.0, seed=5, max_tokens=40))
    texts = whole_texts([request])

    run = Run(oracle(texts, wrong=0.0))
    made = run.events([request])
    assert tokens_of(made["stream-0"]) == texts["stream-0"][len(request.prompt_token_ids) :]
    assert run.scheduler.stats.steps <= 14


def test_a_stream_goes_on_in_another_engine() -> None:
    longer = [dataclasses.replace(one.sampling, max_tokens=24) for one in mix(8, 6)]
    requests = [dataclasses.replace(one, sampling=to) for one, to in zip(mix(8, 6), longer, strict=True)]
    texts = whole_texts(requests)
    for one in requests:
        prompt, output = len(one.prompt_token_ids), texts[one.request_id][len(one.prompt_token_ids) :]
        done = len(output) // 2
        if done == 0:
            continue
        continued = dataclasses.replace(one, output_token_ids=tuple(output[:done]))
        rest = tokens_of(Run(oracle(texts)).events([continued])[one.request_id])
        assert rest == texts[one.request_id][prompt + done :]


def test_the_prefix_cache_holds_no_guess() -> None:
    """A second turn reads the pages that the first one left, of which some held wrong guesses for a step."""
    first = dataclasses.replace(mix(4, 1)[0], sampling=SamplingParams(temperature=1.0, seed=9, max_tokens=40))
    texts = whole_texts([first])
    turn = dataclasses.replace(first, request_id="second", prompt_token_ids=(*texts["stream-0"], 1, 2, 3))
    expected = whole_texts([turn])["second"]
    run = Run(oracle({**texts, "second": expected}, wrong=0.6))
    assert [*first.prompt_token_ids, *tokens_of(run.events([first])["stream-0"])] == texts["stream-0"]
    assert [*turn.prompt_token_ids, *tokens_of(run.events([turn])["second"])] == expected
    assert run.scheduler.stats.prefix_cache_hits >= 4 * PAGE_SIZE


def test_no_token_follows_the_one_that_ends_a_stream() -> None:
    request = dataclasses.replace(mix(6, 1)[0], sampling=SamplingParams(temperature=0.0, max_tokens=30))
    text = whole_texts([request])["stream-0"][len(request.prompt_token_ids) :]
    at = next(i for i in range(3, 30) if text[i] not in text[:i])
    ends = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, eos_token_ids=(text[at],)))
    # The oracle goes on saying what would come behind the end.
    events = Run(oracle({"stream-0": [*request.prompt_token_ids, *text]}, wrong=0.0)).events([ends])["stream-0"]
    assert tokens_of(events) == text[: at + 1]
    assert events[-1].finish_reason is FinishReason.STOP


def test_what_agrees_ends_with_the_first_token_that_was_not_foreseen() -> None:
    assert agreed([], [4, -1, -1]) == [4]
    assert agreed([4, 5], [4, 5, 6]) == [4, 5, 6]
    assert agreed([4, 5], [4, 7, -1]) == [4, 7]
    assert agreed([4, 5], [9, -1, -1]) == [9]
    assert agreed([-1, 5], [-1, -1, -1]) == [-1]
