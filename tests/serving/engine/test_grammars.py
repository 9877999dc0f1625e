"""Grammars are compiled within limits, once, and refused by name."""

import asyncio
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving import bounded_process
from serving.engine.constraint import Constraint
from serving.engine.grammars import GrammarLimits, Grammars
from serving.engine.request import MAX_GRAMMAR_BYTES, GrammarKind, GrammarSpec
from serving.engine.token_masks import TokenMasks
from serving.engine.vocabulary import Vocabulary
from serving.errors import CheckpointError, EngineUnavailableError, OverloadedError, RequestError
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.tiny_vocabulary import END, THOUGHT, encode, text_of, tiny_vocabulary


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    yield grammars
    grammars.close()


def spec(kind: str, text: str, starts_after: tuple[int, ...] = ()) -> GrammarSpec:
    return GrammarSpec(kind=GrammarKind(kind), text=text, starts_after=starts_after)


def regex(text: str) -> GrammarSpec:
    return spec("regex", text)


def constraint(grammars: Grammars, wanted: GrammarSpec, output: tuple[int, ...] = ()) -> Constraint:
    return asyncio.run(grammars.constraint(wanted, output))


def allowed(constraint: Constraint) -> set[int]:
    bits = np.unpackbits(TokenMasks().of([constraint]).view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:VOCAB_SIZE]).tolist())


def refusal(grammars: Grammars, wanted: GrammarSpec) -> RequestError:
    with pytest.raises(RequestError) as refused:
        constraint(grammars, wanted)
    assert refused.value.param == "grammar"
    return refused.value


def test_a_mask_allows_the_tokens_that_can_go_on_and_no_others(grammars: Grammars) -> None:
    of_choice = constraint(grammars, spec("choice", '["yes", "no", "yellow"]'))
    assert allowed(of_choice) == {*encode("y"), *encode("yes"), *encode("n"), *encode("no")}
    of_choice.follow(encode("yes"))
    assert allowed(of_choice) == {END}


def test_every_kind_of_grammar_is_followed(grammars: Grammars) -> None:
    for wanted, text in (
        (regex(r"[a-c]{3}-\d+"), "abc-12345"),
        (spec("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'), '{"a":12}'),
        (spec("choice", '["a \\"quoted\\" one", "b"]'), 'a "quoted" one'),
        (spec("lark", 'start: "no" WORD\nWORD: /[a-z]+/'), "nothe"),
        (spec("ebnf", 'root ::= "yes" | "no"'), "no"),
    ):
        followed = constraint(grammars, wanted)
        followed.follow(encode(text))
        assert followed.failure is None
        assert END in allowed(followed), text
        followed.follow(encode(text + "@"))
        assert followed.failure is not None, text


def test_what_a_grammar_forces_is_written_in_the_tokens_that_the_text_has(grammars: Grammars) -> None:
    forced, text = constraint(grammars, regex("the yes345")), encode("the yes345")
    for count, token in enumerate(text):
        forced.follow(text[:count])
        assert allowed(forced) == {token}


def test_ids_without_text_and_special_tokens_are_never_allowed(grammars: Grammars) -> None:
    assert allowed(constraint(grammars, regex(r"(.|\n)*"))) == {END, *range(2, len(tiny_vocabulary().token_bytes))}


def test_until_the_reasoning_ends_all_is_allowed_but_to_end(grammars: Grammars) -> None:
    reasoning = constraint(grammars, spec("choice", '["yes"]', starts_after=(THOUGHT,)))
    reasoning.follow(encode("hm, yes?"))
    assert allowed(reasoning) == set(range(VOCAB_SIZE)) - {END}
    reasoning.follow([*encode("hm, yes?"), THOUGHT])
    assert allowed(reasoning) == set(encode("yes"))
    reasoning.follow([*encode("hm, yes?"), THOUGHT, *encode("yes")])
    assert allowed(reasoning) == {END}
    reasoning.follow(encode("hm"))
    assert allowed(reasoning) == set(range(VOCAB_SIZE)) - {END}
    reasoning.follow([*encode("hm"), THOUGHT, *encode("y")])
    assert allowed(reasoning) == set(encode("e"))


def test_output_may_come_in_any_pieces_and_be_taken_back(grammars: Grammars) -> None:
    schema = spec("json_schema", '{"type": "array", "items": {"enum": ["abc", 12, true, null]}}')
    prompt, output = encode("the "), encode('["abc",12, true]')
    reference = []
    for count in range(len(output) + 1):
        fresh = constraint(grammars, schema)
        fresh.follow(output[:count])
        reference.append(allowed(fresh))
    moving = constraint(grammars, schema)
    for count in np.random.default_rng(0).integers(0, len(output) + 1, 40).tolist():
        moving.follow(prompt + output[:count], len(prompt))
        assert allowed(moving) == reference[count]


def test_a_stream_that_goes_on_elsewhere_has_read_its_output(grammars: Grammars) -> None:
    assert allowed(constraint(grammars, regex("abc12"), tuple(encode("abc")))) == set(encode("12"))
    with pytest.raises(RequestError, match="cannot go on under its grammar"):
        constraint(grammars, regex("abc12"), tuple(encode("no")))


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (regex("[a-"), "regex"),
        (spec("json_schema", '{"type": "object", '), "JSON"),
        (spec("json_schema", '{"type": "thing"}'), "thing"),
        (spec("json_schema", '{"not": {"type": "string"}}'), "not"),
        (spec("json_schema", '{"$ref": "http://elsewhere.example/schema"}'), "elsewhere"),
        (spec("lark", "start: undefined_rule"), "undefined_rule"),
        (spec("ebnf", 'root ::= undefined_rule "x"'), "undefined_rule"),
        (spec("choice", "[]"), ""),
    ],
    ids=lambda value: value.text if isinstance(value, GrammarSpec) else "",
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(grammars: Grammars, wanted: GrammarSpec, told: str) -> None:
    error = refusal(grammars, wanted)
    assert error.code == "invalid_grammar"
    assert told in error.message
    assert "\n" not in error.message


def test_a_grammar_that_is_too_long_is_refused_unread(grammars: Grammars) -> None:
    assert refusal(grammars, regex("a" * (MAX_GRAMMAR_BYTES + 1))).code == "grammar_too_large"


EXPLODING = {
    "nested too deeply": regex("(" * 60_000 + "a" + ")" * 60_000),
    "objects of objects": spec(
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"p{i}{j}": {"const": j}}, "required": [f"p{i}{j}"]} for j in range(5)]}
                    for i in range(7)
                ]
            }
        ),
    ),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_what_explodes_is_refused_and_the_next_grammar_compiles(name: str) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(cpu_seconds=0.5, memory_bytes=128 << 20))
    assert refusal(grammars, EXPLODING[name]).code in ("grammar_too_complex", "invalid_grammar")
    assert refusal(grammars, EXPLODING[name]).message
    assert grammars.counters.refused == 1
    assert grammars.counters.cache_hits == 1
    assert allowed(constraint(grammars, regex("a"))) == {*encode("a")}
    grammars.close()


def test_equal_grammars_are_compiled_once_and_the_least_recently_used_is_dropped() -> None:
    async def scenario() -> None:
        grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(cached=2))
        await asyncio.gather(*(grammars.constraint(regex("a+")) for _ in range(5)))
        assert (grammars.counters.compiled, grammars.counters.cache_hits) == (1, 4)
        for text in ("b+", "a+", "c+", "a+", "b+"):
            await grammars.constraint(regex(text))
        assert (grammars.counters.compiled, grammars.counters.asked) == (4, 10)
        await asyncio.to_thread(grammars.close)

    asyncio.run(scenario())


def test_streams_of_one_grammar_do_not_meet(grammars: Grammars) -> None:
    one, other = constraint(grammars, regex("abc12")), constraint(grammars, regex("abc12"))
    one.follow(encode("abc"))
    assert allowed(other) == set(encode("abc"))


def test_more_grammars_than_may_wait_are_refused_for_now() -> None:
    async def scenario() -> None:
        grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(waiting=2))
        asked = [asyncio.create_task(grammars.constraint(regex(text))) for text in ("a", "b", "c")]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(item, OverloadedError) for item in done] == [False, False, True]
        await asyncio.to_thread(grammars.close)

    asyncio.run(scenario())


def test_a_caller_who_leaves_takes_no_grammar_from_the_others() -> None:
    async def scenario() -> None:
        grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
        leaving, staying = (asyncio.create_task(grammars.constraint(regex("a"))) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).failure is None
        await asyncio.to_thread(grammars.close)

    asyncio.run(scenario())


def test_closing_does_not_wait_for_what_is_being_compiled() -> None:
    async def scenario() -> None:
        grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(cpu_seconds=1000.0, memory_bytes=1 << 30))
        asked = [asyncio.create_task(grammars.constraint(wanted)) for wanted in (*EXPLODING.values(), regex("a"))]
        await asyncio.sleep(0)
        await asyncio.to_thread(grammars.close)
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, EngineUnavailableError | RequestError)

    asyncio.run(scenario())


def test_what_closing_breaks_off_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    begun, killed = threading.Event(), threading.Event()

    def ask(request: object, seconds: float) -> dict[str, object]:
        begun.set()
        assert killed.wait(10)
        raise EOFError

    monkeypatch.setattr(grammars._worker, "start", lambda: None)
    monkeypatch.setattr(grammars._worker, "ask", ask)
    monkeypatch.setattr(grammars._worker, "interrupt", killed.set)

    async def scenario() -> None:
        waiting = asyncio.create_task(grammars.constraint(regex("a")))
        await asyncio.to_thread(begun.wait, 10)
        await asyncio.to_thread(grammars.close)
        with pytest.raises(EngineUnavailableError) as stopped:
            await waiting
        assert stopped.value.code == "engine_stopped"

    asyncio.run(scenario())


def signal_while_compiling(grammars: Grammars, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """The process gets it after the next question and before its answer."""
    constraint(grammars, regex("started"))
    process, read = grammars._worker._process, bounded_process._read
    assert process is not None
    process.send_signal(signal.SIGSTOP)

    def signalled(*arguments: Any) -> bytes:
        monkeypatch.setattr(bounded_process, "_read", read)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        return read(*arguments)

    monkeypatch.setattr(bounded_process, "_read", signalled)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_others_ended_says_nothing_about_the_grammar(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    signal_while_compiling(grammars, monkeypatch, number)
    with pytest.raises(OverloadedError, match="gave no answer") as refused:
        constraint(grammars, regex("a"))
    assert refused.value.code == "grammars_unavailable"
    assert constraint(grammars, regex("a")).failure is None
    assert grammars.counters.refused == 0
    grammars.close()


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV])
def test_a_process_that_its_limits_ended_tells_of_the_grammar(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)
    signal_while_compiling(grammars, monkeypatch, number)
    assert refusal(grammars, regex("a")).code == refusal(grammars, regex("a")).code == "grammar_too_complex"
    assert (grammars.counters.refused, grammars.counters.cache_hits) == (1, 1)
    grammars.close()


def test_a_grammar_that_a_busy_machine_gave_no_time_is_not_accepted_now(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)

    def ask(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as busy:
        busy.setattr(grammars._worker, "ask", ask)
        with pytest.raises(OverloadedError) as refused:
            constraint(grammars, regex("a"))
    assert refused.value.code == "grammars_unavailable"
    assert constraint(grammars, regex("a")).failure is None
    grammars.close()


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits can be set on Linux only")
def test_a_hard_limit_of_cpu_time_says_nothing_about_the_grammar_and_the_next_process_has_its_own() -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(cpu_seconds=1000.0))
    constraint(grammars, regex("started"))
    process = grammars._worker._process
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (500, 500))
    with pytest.raises(OverloadedError) as refused:
        constraint(grammars, regex("a"))
    assert refused.value.code == "grammars_unavailable"
    assert constraint(grammars, regex("a")).failure is None
    grammars.close()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not hold to the limit")
@pytest.mark.parametrize(
    "choices",
    [["a" * 60_000, "b" * 60_000], [str(number) for number in range(12_000)]],
    ids=["llguidance", "Python"],  # who asks for more than there is
)
def test_a_grammar_that_finds_no_memory_is_too_complex(choices: list[str]) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE, GrammarLimits(memory_bytes=1))
    assert refusal(grammars, spec("choice", json.dumps(choices))).code == "grammar_too_complex"
    grammars.close()


@pytest.mark.parametrize("fault", [EOFError(), BlockingIOError("no more processes")])
def test_where_the_compiling_process_does_not_start_a_grammar_is_not_accepted_now(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(tiny_vocabulary, VOCAB_SIZE)

    def start() -> None:
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(grammars._worker, "start", start)
        with pytest.raises(OverloadedError, match="did not start") as refused:
            constraint(grammars, regex("a"))
    assert refused.value.code == "grammars_unavailable"
    assert constraint(grammars, regex("a")).failure is None
    grammars.close()


def test_a_vocabulary_that_cannot_be_read_is_no_fault_of_the_grammar_and_is_read_again() -> None:
    async def scenario() -> None:
        attempts: list[int] = []

        def vocabulary() -> Vocabulary:
            attempts.append(1)
            if len(attempts) == 1:
                raise CheckpointError("not now")
            return tiny_vocabulary()

        grammars = Grammars(vocabulary, VOCAB_SIZE)
        with pytest.raises(CheckpointError):
            await grammars.constraint(regex("a"))
        assert (await grammars.constraint(regex("a"))).failure is None
        await asyncio.to_thread(grammars.close)

    asyncio.run(scenario())


def test_a_token_of_two_spellings_is_read_either_way(grammars: Grammars) -> None:
    for ids in (encode("the "), [*encode("t"), *encode("h"), *encode("e"), *encode(" ")]):
        followed = constraint(grammars, regex("the end"))
        followed.follow(ids)
        assert followed.failure is None
        assert text_of(ids) == "the "
