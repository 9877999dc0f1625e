import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

from serving.engine.request import FinishReason, GenerateRequest, TokenEvent
from serving.errors import (
    CheckpointError,
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    OverloadedError,
    RequestError,
    UnsupportedError,
)
from serving.generation.chat_format import ChatFormat
from serving.generation.checkpoint_text import SamplingDefaults
from serving.generation.detokenizer import decode
from serving.generation.generator import Generator, derived_seed
from serving.generation.request import GenerationOptions, TextDelta, TextRequest
from serving.generation.tokenizer import Tokenizer, load_tokenizer
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.generation.conftest import train_sentencepiece, write_config

WINDOW = 200


@pytest.fixture(params=["byte_level", "sentencepiece_bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def chat_format() -> Iterator[ChatFormat]:
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    made = ChatFormat({"default": template}, {}, source="testing")
    yield made
    made.close()


@pytest.mark.parametrize("chunk", [1, 2, 7])
async def test_streamed_text_joined_is_the_text_of_the_tokens(tokenizer: Tokenizer, chunk: int) -> None:
    text = "hello café 😀 world"
    ids = tokenizer.encode(text, add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids, chunk=chunk, cached_tokens=3))
    deltas = await _run(generator, prompt="the weft")
    assert _text(deltas).removeprefix(" ") == text
    assert _tokens(deltas) == ids
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].usage.completion_tokens == len(ids)
    assert deltas[-1].usage.prompt_tokens == len(tokenizer.encode("the weft", add_special_tokens=True))
    assert deltas[0].usage.cached_tokens == deltas[-1].usage.cached_tokens == 3


async def test_the_engine_gets_what_the_client_asked_for(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer, Script(token_ids=[5]))
    options = GenerationOptions(
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        logit_bias={7: -100, 8: 3.5},
        allowed_token_ids=(9, 7, 9),
        min_tokens=2,
        max_tokens=20,
        stop_token_ids=(11, 11),
        seed=-3,
        logprobs=2,
        prompt_logprobs=1,
    )
    await _run(generator, prompt=(1, 2, 3), options=options)
    (request,) = _engine(generator).requests
    sampling = request.sampling
    assert request.prompt_token_ids == (1, 2, 3)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 0, 0.9, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.1)
    assert sampling.logit_bias == ((7, -100.0), (8, 3.5))
    assert sampling.allowed_token_ids == (7, 9)
    assert (sampling.min_tokens, sampling.max_tokens) == (2, 20)
    assert sampling.stop_token_ids == (11,)
    assert sampling.eos_token_ids == tokenizer.eos_token_ids
    assert sampling.seed == 2**63 - 3
    assert (sampling.logprobs, sampling.prompt_logprobs) == (2, 1)


async def test_unset_options_take_the_checkpoints_defaults_and_set_ones_win(tokenizer: Tokenizer) -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.8, repetition_penalty=1.2, max_new_tokens=9)
    generator = _generator(tokenizer, Script(token_ids=[5]), defaults=defaults)
    unset = (await _prepare(generator, prompt="hello")).sampling
    assert (unset.temperature, unset.top_k, unset.top_p, unset.repetition_penalty) == (0.6, 20, 0.8, 1.2)
    assert unset.max_tokens == 9
    given = GenerationOptions(temperature=0, top_k=0, top_p=1.0, max_tokens=12)
    chosen = (await _prepare(generator, prompt="hello", options=given)).sampling
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.max_tokens) == (0.0, 0, 1.0, 12)


async def test_without_max_tokens_the_window_is_filled(tokenizer: Tokenizer) -> None:
    prepared = await _prepare(_generator(tokenizer), prompt=(5,) * 30, options=GenerationOptions(n=2))
    assert prepared.sampling.max_tokens == WINDOW - 30
    assert prepared.most_tokens == 30 + 2 * (WINDOW - 30)


async def test_ignore_eos_goes_past_it(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_ids[0]
    generator = _generator(tokenizer, Script(token_ids=[5, eos, 6]))
    stopped = await _run(generator, prompt="hello")
    assert (_tokens(stopped), stopped[-1].finish_reason, stopped[-1].stop_reason) == ([5, eos], "stop", None)
    ignored = await _run(generator, prompt="hello", options=GenerationOptions(ignore_eos=True))
    assert (_tokens(ignored), ignored[-1].finish_reason) == ([5, eos, 6], "length")


async def test_a_stop_token_is_named_and_its_text_shown_only_where_asked(tokenizer: Tokenizer) -> None:
    first, last = (tokenizer.encode(word, add_special_tokens=False)[-1] for word in ("hello", "world"))
    generator = _generator(tokenizer, Script(token_ids=[first, last, first]))
    for include in (False, True):
        options = GenerationOptions(stop_token_ids=(last,), include_stop_str_in_output=include)
        deltas = await _run(generator, prompt="the", options=options)
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, last)
        assert _text(deltas) == _bytes(tokenizer, [first, last] if include else [first])
        assert _tokens(deltas) == [first, last]


@pytest.mark.parametrize("chunk", [1, 3, 50])
async def test_a_stop_string_ends_the_choice_and_the_engines_stream(tokenizer: Tokenizer, chunk: int) -> None:
    ids = tokenizer.encode("hello world over under", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids, chunk=chunk))
    options = GenerationOptions(stop=("ld ov", "zzz"), logprobs=0)
    deltas = await _run(generator, prompt="the", options=options)
    assert _text(deltas).removeprefix(" ") == "hello wor"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.STOP]
    assert deltas[-1].stop_reason == "ld ov"
    assert len(_engine(generator).closed) + len(_engine(generator).finished) == 1
    shown = _bytes(tokenizer, _tokens(deltas))
    assert _text(deltas).startswith(shown)
    assert "ld" not in shown
    assert [entry.token.token_id for delta in deltas for entry in delta.logprobs] == _tokens(deltas)
    whole = [i for i in range(len(ids) + 1) if "ld ov" in decode(tokenizer, ids[:i])]
    assert deltas[-1].usage.completion_tokens == whole[0]


async def test_an_included_stop_string_is_the_end_of_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello world over under", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids))
    options = GenerationOptions(stop=("ld ov",), include_stop_str_in_output=True)
    deltas = await _run(generator, prompt="the", options=options)
    assert _text(deltas).removeprefix(" ") == "hello world ov"
    shown = _bytes(tokenizer, _tokens(deltas))
    assert shown.startswith(_text(deltas))


@pytest.mark.parametrize("chunk", [1, 4])
async def test_tokens_and_logprobs_never_run_ahead_of_the_text(tokenizer: Tokenizer, chunk: int) -> None:
    ids = tokenizer.encode("hello wor world 😀😀 wo", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids, chunk=chunk))
    options = GenerationOptions(stop=("world!", "wonder"), logprobs=3)
    shown, told = "", []
    for delta in await _run(generator, prompt="the", options=options):
        shown += delta.text
        told += delta.token_ids
        assert len(delta.logprobs) == len(delta.token_ids)
        assert shown.startswith(_bytes(tokenizer, told))
    assert told == ids


async def test_logprobs_name_tokens_with_their_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids))
    deltas = await _run(generator, prompt="the", options=GenerationOptions(logprobs=2))
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert b"".join(entry.token.token_bytes for entry in entries).removeprefix(b" ") == "a😀".encode()
    assert all(entry.logprob == -entry.token.token_id / 1000 and entry.rank == 1 for entry in entries)
    assert [[token.token_id for token, _ in entry.top] for entry in entries] == [[i, i + 1] for i in ids]


async def test_prompt_logprobs_come_once_with_none_for_the_first_token(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer, Script(token_ids=[5, 6]))
    options = GenerationOptions(prompt_logprobs=0, n=2)
    deltas = await _run(generator, prompt=(7, 8, 9), options=options)
    given = [(delta.index, delta.prompt_logprobs) for delta in deltas if delta.prompt_logprobs is not None]
    assert len(given) == 1
    index, entries = given[0]
    assert index == 0
    assert [entry and entry.token.token_id for entry in entries] == [None, 8, 9]


async def test_each_choice_has_its_own_seed_and_one_finish(tokenizer: Tokenizer) -> None:
    scripts = [Script(token_ids=range(5, 5 + size), chunk=2) for size in (1, 6, 3, 9)]
    generator = _generator(tokenizer, *scripts)
    deltas = await _run(generator, prompt="the", options=GenerationOptions(n=4, seed=42))
    requests = _engine(generator).requests
    assert [request.sampling.seed for request in requests] == [derived_seed(42, i) for i in range(4)]
    assert requests[0].sampling.seed == 42
    assert len({request.sampling.seed for request in requests}) == 4
    assert len({request.request_id for request in requests}) == 4
    for index, script in enumerate(scripts):
        own = [delta for delta in deltas if delta.index == index]
        assert _tokens(own) == list(script.token_ids)
        assert [delta.finish_reason is None for delta in own] == [True] * (len(own) - 1) + [False]
        assert own[-1].usage.completion_tokens == len(script.token_ids)


async def test_without_a_seed_one_is_drawn_for_each_request(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer)
    seeds = {(await _prepare(generator, prompt="the")).sampling.seed for _ in range(5)}
    assert len(seeds) == 5


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_the_stream_early_aborts_every_choice(tokenizer: Tokenizer, n: int) -> None:
    generator = _generator(tokenizer, Script(token_ids=range(5, 50), hold_after=4))
    prepared = await _prepare(generator, prompt="the", options=GenerationOptions(n=n))
    async with aclosing(generator.stream(prepared)) as deltas:
        async for _ in deltas:
            break
    assert len(_engine(generator).closed) == len(_engine(generator).requests) > 0
    assert _engine(generator).finished == []


async def test_cancelling_the_reader_aborts_every_choice(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer, Script(token_ids=range(5, 50), hold_after=2))
    task = asyncio.create_task(_run(generator, prompt="the", options=GenerationOptions(n=3)))
    while len(_engine(generator).requests) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(_engine(generator).closed) == 3


@pytest.mark.parametrize("n", [1, 3])
async def test_an_engine_failure_ends_all_choices_with_its_reason(tokenizer: Tokenizer, n: int) -> None:
    failing = Script(token_ids=[5, 6], finish=FinishReason.ERROR, error="not finite")
    waiting = Script(token_ids=[5, 6], hold_after=1)
    generator = _generator(tokenizer, failing, waiting)
    with pytest.raises(EngineError, match="not finite"):
        await _run(generator, prompt="the", options=GenerationOptions(n=n))
    engine = _engine(generator)
    assert len(engine.closed) + len(engine.finished) == len(engine.requests)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("error", [OverloadedError("full", retry_after=1.0), EngineUnavailableError("lost")])
async def test_a_refusal_of_the_engine_reaches_the_caller(tokenizer: Tokenizer, n: int, error: Exception) -> None:
    generator = _generator(tokenizer, Script(token_ids=[5]), Script(token_ids=[5], raises=error))
    if n == 1:
        await _run(generator, prompt="the")
    with pytest.raises(type(error)):
        await _run(generator, prompt="the", options=GenerationOptions(n=n))


async def test_an_abort_by_the_engine_is_the_finish(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer, Script(token_ids=[5, 6], finish=FinishReason.ABORT))
    deltas = await _run(generator, prompt="the")
    assert deltas[-1].finish_reason is FinishReason.ABORT


async def test_messages_go_through_the_chat_format_without_a_second_bos(
    sentencepiece_bpe: Path, chat_format: ChatFormat
) -> None:
    tokenizer = load_tokenizer(sentencepiece_bpe)
    generator = _generator(tokenizer, chat_format=chat_format)
    prepared = await _prepare(generator, messages=[{"role": "user", "content": "hello"}])
    assert prepared.prompt_text == "<|user|>hello"
    assert list(prepared.prompt_token_ids) == tokenizer.encode("<|user|>hello", add_special_tokens=False)
    asked = await _prepare(generator, messages=[{"role": "user", "content": "hello"}], add_special_tokens=True)
    assert asked.prompt_token_ids == (tokenizer.bos_token_id, *prepared.prompt_token_ids)


async def test_chat_without_a_template_is_unsupported(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        await _prepare(_generator(tokenizer), messages=[{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("given", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}])
async def test_exactly_one_of_prompt_and_messages_is_taken(tokenizer: Tokenizer, given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="exactly one"):
        await _prepare(_generator(tokenizer), **given)


@pytest.mark.parametrize("prompt", [(), (-1,), (10**6,), (True,)])
async def test_token_prompts_are_checked(tokenizer: Tokenizer, prompt: tuple[int, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        await _prepare(_generator(tokenizer), prompt=prompt)
    assert caught.value.param == "prompt"


async def test_a_prompt_that_fills_the_window_is_refused_with_the_numbers(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer)
    with pytest.raises(ContextLengthError, match=f"{WINDOW} tokens, but the model's window is {WINDOW}"):
        await _prepare(generator, prompt=(5,) * WINDOW)
    options = GenerationOptions(max_tokens=WINDOW)
    with pytest.raises(ContextLengthError, match=f"max_tokens may be at most {WINDOW - 3}") as caught:
        await _prepare(generator, prompt=(5, 5, 5), options=options)
    assert caught.value.param == "max_tokens"
    assert (await _prepare(generator, prompt=(5,) * (WINDOW - 1))).sampling.max_tokens == 1


async def test_a_prompt_that_is_only_scored_may_fill_the_window(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer)
    scores = GenerationOptions(max_tokens=0, prompt_logprobs=0)
    assert (await _prepare(generator, prompt=(5,) * WINDOW, options=scores)).sampling.max_tokens == 0
    with pytest.raises(ContextLengthError, match=f"{WINDOW + 1} tokens, but the model's window is {WINDOW} tokens$"):
        await _prepare(generator, prompt=(5,) * (WINDOW + 1), options=scores)
    with pytest.raises(RequestError, match="min_tokens must be between 0 and 0"):
        await _prepare(generator, prompt=(5,), options=GenerationOptions(max_tokens=0, min_tokens=1))


async def test_an_engine_that_did_not_score_the_whole_prompt_has_failed(tokenizer: Tokenizer) -> None:
    class Forgetful(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
            async for event in super().generate(request):
                yield replace(event, prompt_logprobs=event.prompt_logprobs[1:])

    generator = Generator(Forgetful([Script(token_ids=[5])]), tokenizer, None, "testing", WINDOW)
    prepared = await _prepare(generator, prompt=(5, 5), options=GenerationOptions(prompt_logprobs=0))
    with pytest.raises(EngineError, match="did not score"):
        [delta async for delta in generator.stream(prepared)]


async def test_a_text_far_too_long_is_refused_without_encoding_it(tokenizer: Tokenizer) -> None:
    generator = _generator(_NeverEncodes(tokenizer))
    with pytest.raises(ContextLengthError, match="10000000 characters"):
        await _prepare(generator, prompt="a" * 10_000_000)


async def test_a_long_text_is_encoded_like_a_short_one(tokenizer: Tokenizer) -> None:
    generator = Generator(ScriptedEngine(), tokenizer, None, "testing", 10_000)
    text = "hello world " * 500
    prepared = await _prepare(generator, prompt=text)
    assert list(prepared.prompt_token_ids) == tokenizer.encode(text, add_special_tokens=True)


async def test_lone_surrogates_are_refused_and_nul_is_text(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer)
    with pytest.raises(RequestError, match="surrogate"):
        await _prepare(generator, prompt="a\ud800b")
    prepared = await _prepare(generator, prompt="a\x00b")
    assert decode(tokenizer, prepared.prompt_token_ids) == "a\x00b"


async def test_tokenize_and_detokenize_are_inverse(tokenizer: Tokenizer) -> None:
    generator = _generator(tokenizer)
    ids = await generator.tokenize("hello 😀", add_special_tokens=False)
    assert generator.detokenize(ids) == "hello 😀"
    with pytest.raises(RequestError, match="tokens: token id -5"):
        generator.detokenize([-5])


@pytest.mark.parametrize(
    "defaults",
    [SamplingDefaults(temperature=9), SamplingDefaults(top_k=-7), SamplingDefaults(max_new_tokens=0)],
)
def test_defaults_that_no_request_could_use_are_refused_at_start(byte_level: Path, defaults: SamplingDefaults) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        _generator(load_tokenizer(byte_level), defaults=defaults)


@pytest.mark.parametrize(("ends", "says"), [(tuple(range(17)), "names 17 tokens"), ((5, 10**6), "1000000 is no token")])
def test_end_tokens_that_no_engine_could_serve_are_a_checkpoint_error(
    byte_level: Path, ends: tuple[int, ...], says: str
) -> None:
    tokenizer = load_tokenizer(byte_level)
    tokenizer.eos_token_ids = ends  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CheckpointError, match=says) as caught:
        _generator(tokenizer)
    assert caught.value.param == "eos_token_id"


def test_a_token_that_ends_a_text_and_that_the_model_cannot_draw_is_refused_at_load(
    byte_level: Path, tmp_path: Path
) -> None:
    """The engine would refuse each request for it, and no grammar could be compiled."""
    shutil.copytree(byte_level, tmp_path, dirs_exist_ok=True)
    added = load_tokenizer(byte_level).vocab_size - 1
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, added]}))
    for vocab_size, fits in ((added + 100, True), (added + 1, True), (added, False)):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
        if fits:
            _generator(load_tokenizer(tmp_path))
            continue
        with pytest.raises(CheckpointError, match=f"eos_token_id {added} is no token of its model") as caught:
            _generator(load_tokenizer(tmp_path))
        assert caught.value.param == "eos_token_id"


def test_derived_seeds_are_fixed_and_within_bounds() -> None:
    seeds = [derived_seed(7, index) for index in range(128)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 128
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(7, 1) != derived_seed(8, 1)


@pytest.mark.parametrize("chunk", [1, 2, 9])
async def test_until_min_tokens_a_stop_string_is_text(tokenizer: Tokenizer, chunk: int) -> None:
    ids = tokenizer.encode("red blue red blue", add_special_tokens=False)
    half = tokenizer.encode("red blue", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids, chunk=chunk))
    options = GenerationOptions(stop=("blue",), min_tokens=len(half))
    deltas = await _run(generator, prompt="the", options=options)
    assert _text(deltas).removeprefix(" ") == "red blue red "
    assert deltas[-1].stop_reason == "blue"
    all_held = await _run(generator, prompt="the", options=replace(options, min_tokens=len(ids)))
    assert _text(all_held).removeprefix(" ") == "red blue red blue"
    assert _tokens(all_held) == ids


async def test_a_stop_string_over_the_min_tokens_border_is_found(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("red blue", add_special_tokens=False)
    generator = _generator(tokenizer, Script(token_ids=ids))
    deltas = await _run(generator, prompt="the", options=GenerationOptions(stop=("d blue",), min_tokens=len(ids) - 1))
    assert _text(deltas).removeprefix(" ") == "re"


async def test_tool_call_tags_that_are_special_tokens_stay_where_tools_are_offered(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path, "bpe", user_defined_symbols=["<tool_call>", "</tool_call>", "<|end|>"])
    added = {
        str(token_id): {"content": text, "special": True}
        for text in ("<tool_call>", "</tool_call>", "<|end|>")
        for token_id in [SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model")).piece_to_id(text)]
    }
    write_config(tmp_path, added_tokens_decoder=added)
    tokenizer = load_tokenizer(tmp_path)
    template = "{# <tool_call> #}{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    chat_format = ChatFormat({"default": template}, {}, source="testing")
    ids = tokenizer.encode("<tool_call>red</tool_call><|end|>", add_special_tokens=False)
    assert tokenizer.is_special(ids[0])
    generator = _generator(tokenizer, Script(token_ids=ids), chat_format=chat_format)
    messages = [{"role": "user", "content": "hello"}]
    tools = [{"type": "function", "function": {"name": "dye"}}]
    with_tools = await _run(generator, messages=messages, tools=tools)
    without = await _run(generator, messages=messages)
    chat_format.close()
    assert _text(with_tools).replace(" ", "") == "<tool_call>red</tool_call>"
    assert _text(without).strip() == "red"


class _NeverEncodes:
    """The tokenizer, but for `encode`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name == "encode":
            raise AssertionError("the text was encoded")
        return getattr(self._tokenizer, name)


def _generator(
    tokenizer: Any, *scripts: Script, chat_format: ChatFormat | None = None, defaults: SamplingDefaults | None = None
) -> Generator:
    return Generator(ScriptedEngine(scripts), tokenizer, chat_format, "testing", WINDOW, defaults)


def _engine(generator: Generator) -> ScriptedEngine:
    assert isinstance(generator.engine, ScriptedEngine)
    return generator.engine


async def _prepare(generator: Generator, **fields: Any):
    return await generator.prepare(TextRequest(request_id="r", **fields))


async def _run(generator: Generator, **fields: Any) -> list[TextDelta]:
    return [delta async for delta in generator.stream(await _prepare(generator, **fields))]


def _text(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def _tokens(deltas: list[TextDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def _bytes(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of the tokens in the middle of a text."""
    return b"".join(map(tokenizer.token_bytes, ids)).decode()
