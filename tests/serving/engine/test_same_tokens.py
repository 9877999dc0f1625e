"""The promise that everything else in the engine must keep: a request gives the same tokens whatever happens around it.

Greedy and seeded requests run through the real scheduler, packer, programs and pages of a tiny Llama: alone, among
others, in any chunking, with a cold and a warm prefix cache, preempted, and continued after every one of its tokens.
"""

import dataclasses

import numpy as np
import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from serving.engine.scheduler import Scheduler
from tests.fakes.tiny_model import (
    DECODE_ROUNDS,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    NUM_PAGES,
    PAGE_SIZE,
    VOCAB_SIZE,
    tiny_executor,
)

ROUNDING = 1e-4  # of a logit: two best logits nearer than this may change places with the order of a sum

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=24),
    "seeded": SamplingParams(temperature=1.0, seed=7, max_tokens=24),
    "filtered": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=2**62 + 5, max_tokens=24),
    "penalised": SamplingParams(
        temperature=0.7,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        seed=11,
        max_tokens=24,
        min_tokens=20,
        eos_token_ids=tuple(range(0, VOCAB_SIZE, 9)),
    ),
    "edited": SamplingParams(
        temperature=0.9,
        logit_bias=((5, 4.0), (6, -100.0)),
        bad_words=((9,), (3, 4)),
        allowed_token_ids=tuple(range(64)),
        seed=13,
        max_tokens=24,
    ),
}


def request(kind: str, name: str = "watched", length: int = 37) -> GenerateRequest:
    prompt = np.random.default_rng(length).integers(0, VOCAB_SIZE, length).tolist()
    return GenerateRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=SAMPLING[kind])


def crowd(count: int) -> list[GenerateRequest]:
    kinds = list(SAMPLING)
    return [request(kinds[i % len(kinds)], f"other-{i}", 5 + 11 * i % 60) for i in range(count)]


class Run:
    """One scheduler over the shared executor."""

    def __init__(self, budget: int = 128, pages: int = NUM_PAGES, caching: bool = True, rounds: int = 1) -> None:
        self.pool = BlockPool(pages, PAGE_SIZE, prefix_caching=caching)
        self.scheduler = Scheduler(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=min(MAX_NUM_SEQS, budget),
            max_num_batched_tokens=budget,
            max_waiting=100,
            pool=self.pool,
            vocab_size=VOCAB_SIZE,
            decode_rounds=rounds,
        )
        self.loop = EngineLoop(self.scheduler, tiny_executor(), now=lambda: 0.0)
        self.ends: dict[str, TokenEvent] = {}

    def tokens(self, *requests: GenerateRequest) -> dict[str, list[int]]:
        for one in requests:
            self.scheduler.add(one, 0.0)
        made: dict[str, list[int]] = {one.request_id: [] for one in requests}
        while not self.loop.idle:
            for event in self.loop.step():
                made[event.request_id] += event.token_ids
                if event.finish_reason is not None:
                    assert event.request_id not in self.ends
                    self.ends[event.request_id] = event
        self.scheduler.check()
        assert self.scheduler.stats.used_pages == 0
        assert all(self.ends[one.request_id].finish_reason is not FinishReason.ERROR for one in requests)
        return made


def assert_same(kind: str, expected: list[int], got: list[int]) -> None:
    """Equal, but for a greedy flip between two logits that lie within rounding of each other."""
    if expected == got:
        return
    at = next(i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b)
    assert SAMPLING[kind].temperature == 0.0, f"token {at} of {kind}: {expected} became {got}"
    one = request(kind)
    probe = dataclasses.replace(
        one,
        output_token_ids=tuple(expected[:at]),
        sampling=dataclasses.replace(one.sampling, max_tokens=at + 1, logprobs=2),
    )
    run = Run()
    run.tokens(probe)
    best, second = run.ends["watched"].logprobs[0].top_logprobs
    assert best - second < ROUNDING, f"token {at} of {kind} flipped over a gap of {best - second}"


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """What each kind of request gives on a fresh pool, with nothing beside it."""
    return {kind: Run().tokens(request(kind))["watched"] for kind in SAMPLING}


def test_the_kinds_of_request_give_different_tokens(alone: dict[str, list[int]]) -> None:
    assert len({tuple(tokens) for tokens in alone.values()}) == len(SAMPLING)


@pytest.mark.parametrize("kind", SAMPLING)
def test_among_thirty_one_others(kind: str, alone: dict[str, list[int]]) -> None:
    late = [dataclasses.replace(other, request_id=f"late-{other.request_id}") for other in crowd(16)]
    made = Run().tokens(*crowd(15), request(kind), *late)
    assert_same(kind, alone[kind], made["watched"])


@pytest.mark.parametrize("budget", [1, 3, 8, 31, 64])
@pytest.mark.parametrize("kind", SAMPLING)
def test_in_any_chunking(kind: str, budget: int, alone: dict[str, list[int]]) -> None:
    assert_same(kind, alone[kind], Run(budget=budget).tokens(request(kind))["watched"])


@pytest.mark.parametrize("company", [0, 5, 20])
@pytest.mark.parametrize("kind", ["greedy", "seeded", "filtered"])
def test_several_tokens_at_a_time(kind: str, company: int, alone: dict[str, list[int]]) -> None:
    run = Run(rounds=DECODE_ROUNDS)
    repeated = dataclasses.replace(request("seeded"), sampling=SAMPLING[kind])
    others = [dataclasses.replace(repeated, request_id=f"other-{i}") for i in range(company)]
    made = run.tokens(*others, request(kind))
    assert_same(kind, alone[kind], made["watched"])
    assert run.scheduler.stats.steps < 20, "each token had a step of its own"


@pytest.mark.parametrize("kind", ["penalised", "edited"])
def test_draws_that_remember_are_made_one_at_a_time(kind: str, alone: dict[str, list[int]]) -> None:
    run = Run(rounds=DECODE_ROUNDS)
    made = run.tokens(request(kind), request("greedy", "other"))
    assert_same(kind, alone[kind], made["watched"])
    assert run.scheduler.stats.steps >= 24


@pytest.mark.parametrize("kind", SAMPLING)
def test_with_a_warm_prefix_cache(kind: str, alone: dict[str, list[int]]) -> None:
    run = Run()
    run.tokens(request(kind, "first"))
    assert_same(kind, alone[kind], run.tokens(request(kind))["watched"])
    assert run.scheduler.stats.prefix_cache_hits >= 32, "nothing was reused, so nothing was shown"


@pytest.mark.parametrize("kind", SAMPLING)
def test_with_a_prefix_shared_by_others_that_still_run(kind: str, alone: dict[str, list[int]]) -> None:
    twins = [dataclasses.replace(request("seeded"), request_id=f"twin-{i}") for i in range(3)]
    made = Run().tokens(*twins, request(kind))
    assert_same(kind, alone[kind], made["watched"])
    assert made["twin-0"] == made["twin-1"] == made["twin-2"] == alone["seeded"]


@pytest.mark.parametrize("kind", SAMPLING)
@pytest.mark.parametrize("caching", [True, False])
def test_preempted(kind: str, caching: bool, alone: dict[str, list[int]]) -> None:
    run = Run(pages=14, caching=caching)
    made = run.tokens(*crowd(6), request(kind))
    assert run.scheduler.stats.preemptions > 0, "nothing was preempted, so nothing was shown"
    assert_same(kind, alone[kind], made["watched"])


@pytest.mark.parametrize("kind", SAMPLING)
def test_continued_after_any_of_its_tokens(kind: str, alone: dict[str, list[int]]) -> None:
    tokens = alone[kind]
    run = Run()
    for done in range(1, len(tokens), 4):
        continued = dataclasses.replace(request(kind), output_token_ids=tuple(tokens[:done]))
        run.ends.clear()
        assert_same(kind, tokens, tokens[:done] + run.tokens(continued)["watched"])


def test_a_row_keeps_nothing_of_its_last_owner(alone: dict[str, list[int]]) -> None:
    run = Run(budget=1)  # one row, used by one request after another
    for kind in ("edited", "seeded", "penalised", "greedy", "filtered"):
        run.ends.clear()
        assert_same(kind, alone[kind], run.tokens(request(kind))["watched"])


def test_prompt_logprobs_are_the_same_in_any_chunking() -> None:
    one = request("greedy")
    one = dataclasses.replace(one, sampling=dataclasses.replace(one.sampling, max_tokens=1, prompt_logprobs=3))
    scores = []
    for budget in (7, 16, 128):
        run = Run(budget=budget)
        run.tokens(one)
        scored = run.ends["watched"].prompt_logprobs
        assert [s.token_id for s in scored] == list(one.prompt_token_ids[1:])
        assert all(len(s.top_token_ids) == 3 and s.top_logprobs[0] >= s.logprob for s in scored)
        scores.append([s.logprob for s in scored])
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-4)


def test_logprobs_name_the_sampled_token_and_its_rank() -> None:
    one = request("greedy")
    one = dataclasses.replace(one, sampling=dataclasses.replace(one.sampling, max_tokens=1, logprobs=5))
    run = Run()
    (token,) = run.tokens(one)["watched"]
    (scored,) = run.ends["watched"].logprobs
    assert scored.token_id == token == scored.top_token_ids[0]
    assert scored.rank == 1
    assert scored.logprob == pytest.approx(scored.top_logprobs[0])
