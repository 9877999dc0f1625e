"""Options in the client's terms: bounds, defaults and contradictions, refused by name."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ContextLengthError, RequestError
from serving.generation.chat_format import ChatFormat
from serving.generation.checkpoint_text import SamplingDefaults
from serving.generation.detokenizer import decode
from serving.generation.generator import Generator
from serving.generation.request import GenerationOptions, PreparedPrompt, TextRequest
from serving.generation.tokenizer import Tokenizer, load_tokenizer
from tests.fakes.engine import Script, ScriptedEngine

WINDOW = 200


BAD_OPTIONS = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
    ({"logit_bias": {1: 101.0}}, "logit_bias"),
    ({"logit_bias": {1: math.nan}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(range(301), 0.0)}, "logit_bias"),
    ({"allowed_token_ids": ()}, "allowed_token_ids"),
    ({"allowed_token_ids": (-1,)}, "allowed_token_ids"),
    ({"bad_words": ("",)}, "bad_words"),
    ({"bad_words": ("x" * 257,)}, "bad_words"),
    ({"bad_words": ("many different words make a long sequence",)}, "bad_words"),
    ({"bad_words": ("a",) * 65}, "bad_words"),
    ({"allowed_token_ids": (1,), "min_tokens": 1}, "allowed_token_ids"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"stop": ("",)}, "stop"),
    ({"stop": ("x" * 513,)}, "stop"),
    ({"stop": ("\ud800",)}, "stop"),
    ({"stop": tuple(map(str, range(17)))}, "stop"),
    ({"stop_token_ids": (10**6,)}, "stop_token_ids"),
    ({"stop_token_ids": tuple(range(33))}, "stop_token_ids"),
    ({"seed": 2**63}, "seed"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("bad", "name"), BAD_OPTIONS)
async def test_an_option_out_of_bounds_is_refused_by_name(byte_level: Path, bad: dict[str, Any], name: str) -> None:
    generator = _generator(load_tokenizer(byte_level))
    with pytest.raises(RequestError, match=name) as caught:
        await _prepare(generator, prompt="hello", options=GenerationOptions(**bad))
    assert caught.value.param == name


@pytest.fixture
def of_a_model(byte_level: Path, tmp_path: Path) -> Callable[[int], Tokenizer]:
    """The tokenizer of a model with so many tokens more, or fewer, than it has itself."""
    shutil.copytree(byte_level, tmp_path, dirs_exist_ok=True)
    size = load_tokenizer(byte_level).vocab_size

    def made(more: int) -> Tokenizer:
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size + more}))
        return load_tokenizer(tmp_path)

    return made


async def test_ids_of_a_padded_vocabulary_may_be_sent_as_they_may_be_drawn(
    of_a_model: Callable[[int], Tokenizer],
) -> None:
    tokenizer = of_a_model(8)
    size, last = tokenizer.vocab_size, tokenizer.vocab_size + 7
    generator = _generator(tokenizer, draws=[last, 7])
    deltas = [delta async for delta in generator.stream(await _prepare(generator, prompt=(5, last)))]
    assert [token_id for delta in deltas for token_id in delta.token_ids] == [last, 7]
    assert "".join(delta.text for delta in deltas) == decode(tokenizer, [7])
    assert generator.detokenize([last, 7, size]) == decode(tokenizer, [7])
    for beyond in (last + 1, -1):
        with pytest.raises(RequestError, match=rf"prompt: token id {beyond} is not an integer in 0 \.\. {last}$"):
            await _prepare(generator, prompt=(5, beyond))
        with pytest.raises(RequestError, match=f"tokens: token id {beyond} "):
            generator.detokenize([beyond])


@pytest.mark.parametrize("param", ["prompt", "messages"])
async def test_a_text_with_a_token_that_the_model_lacks_is_refused_by_the_name_it_came_in(
    of_a_model: Callable[[int], Tokenizer], param: str
) -> None:
    chat_format = ChatFormat({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {}, source="testing")
    generator = _generator(of_a_model(-1), chat_format=chat_format)
    lacking = generator.tokenizer.vocab_size - 1

    def given(text: str) -> dict[str, Any]:
        return {"prompt": text} if param == "prompt" else {"messages": [{"role": "user", "content": text}]}

    await _prepare(generator, **given("hello"))
    with pytest.raises(RequestError, match=f"'<tool_call>', whose token {lacking} the model lacks") as caught:
        await _prepare(generator, **given("hello <tool_call>"))
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")
    assert "tokenizer has more tokens than its model" in caught.value.message
    with pytest.raises(RequestError, match=f"prompt: token id {lacking} is not"):
        await _prepare(generator, prompt=(lacking,))
    chat_format.close()


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
@pytest.mark.parametrize("more", [8, -8, None])
async def test_the_ids_of_an_option_are_the_models(
    byte_level: Path, of_a_model: Callable[[int], Tokenizer], name: str, more: int | None
) -> None:
    """Where config.json says nothing they are the tokenizer's."""
    plain = load_tokenizer(byte_level)
    count = plain.vocab_size + (more or 0)
    generator = _generator(plain if more is None else of_a_model(more))

    def asked(token_id: int) -> GenerationOptions:
        return GenerationOptions(**{name: {token_id: 1.0} if name == "logit_bias" else (token_id,)})

    await _prepare(generator, prompt="hello", options=asked(count - 1))
    with pytest.raises(RequestError, match=rf"{name}: token id {count} is not an integer in 0 \.\. {count - 1}$"):
        await _prepare(generator, prompt="hello", options=asked(count))


async def test_a_bad_word_that_the_model_lacks_is_refused(of_a_model: Callable[[int], Tokenizer]) -> None:
    generator = _generator(of_a_model(-1))
    with pytest.raises(RequestError, match="bad_words has the text '<tool_call>'") as caught:
        await _prepare(generator, prompt="hello", options=GenerationOptions(bad_words=("<tool_call>",)))
    assert (caught.value.param, caught.value.code) == ("bad_words", "invalid_value")


async def test_bad_words_are_banned_at_the_start_and_after_a_space(byte_level: Path) -> None:
    tokenizer = load_tokenizer(byte_level)
    options = GenerationOptions(bad_words=(" loom",))
    banned = (await _prepare(_generator(tokenizer), prompt="hello", options=options)).sampling.bad_words
    plain, spaced = (tuple(tokenizer.encode(word, add_special_tokens=False)) for word in ("loom", " loom"))
    assert plain != spaced
    assert banned == (plain, spaced)


async def test_a_bad_word_without_tokens_is_refused(byte_level: Path) -> None:
    class Forgets:
        """The tokenizer, but that it drops what it does not know."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [] if "loom" in text else tokenizer.encode(text, add_special_tokens=add_special_tokens)

    tokenizer = load_tokenizer(byte_level)
    with pytest.raises(RequestError, match="'loom' has no tokens") as caught:
        await _prepare(_generator(Forgets()), prompt="hello", options=GenerationOptions(bad_words=("loom",)))
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize(
    ("banned", "names"),
    [
        ({"min_tokens": 1}, "min_tokens .* ban all of allowed_token_ids"),
        ({"bad_words": ("a", "loom"), "min_tokens": 1}, "bad_words and min_tokens .* ban all of allowed_token_ids"),
        ({"bad_words": ("a", "weft thread")}, "bad_words ban all of allowed_token_ids"),
    ],
)
async def test_bans_that_leave_nothing_of_the_allowed_tokens_are_refused_by_both_names(
    byte_level: Path, banned: dict[str, Any], names: str
) -> None:
    tokenizer = load_tokenizer(byte_level)
    (word,) = tokenizer.encode("a", add_special_tokens=False)
    stop, other = 50, 51
    allowed = {
        "min_tokens": (stop, tokenizer.eos_token_ids[0]),
        "bad_words min_tokens": (word, stop),
        "bad_words": (word,),
    }[" ".join(banned)]
    generator = _generator(tokenizer)
    options = GenerationOptions(allowed_token_ids=allowed, stop_token_ids=(stop,), **banned)
    with pytest.raises(RequestError, match=names) as caught:
        await _prepare(generator, prompt="hello", options=options)
    assert caught.value.param == "allowed_token_ids"
    await _prepare(generator, prompt="hello", options=replace(options, allowed_token_ids=(*allowed, other)))


async def test_a_prompt_that_fills_the_window_is_refused_by_the_name_it_came_in(
    byte_level: Path,
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    chat_format = ChatFormat({"default": template}, {}, source="testing")
    generator = _generator(load_tokenizer(byte_level), chat_format=chat_format)
    with pytest.raises(ContextLengthError, match="at least one must be left") as caught:
        await _prepare(generator, prompt=(5,) * WINDOW)
    assert caught.value.param == "prompt"
    with pytest.raises(ContextLengthError, match="at least one must be left") as caught:
        await _prepare(generator, messages=[{"role": "user", "content": "0 " * WINDOW}])
    assert caught.value.param == "messages"
    chat_format.close()


async def test_a_default_of_max_tokens_yields_to_the_window_and_to_the_client(byte_level: Path) -> None:
    generator = _generator(load_tokenizer(byte_level), defaults=SamplingDefaults(max_new_tokens=9))

    async def most(prompt: int, **options: Any) -> int:
        prepared = await _prepare(generator, prompt=(5,) * prompt, options=GenerationOptions(**options))
        return prepared.sampling.max_tokens

    assert await most(10, default_max_tokens=16) == 16
    assert await most(WINDOW - 5, default_max_tokens=16) == 5
    assert await most(10, default_max_tokens=16, max_tokens=20) == 20
    with pytest.raises(ContextLengthError):
        await most(WINDOW - 5, default_max_tokens=16, max_tokens=16)


def _generator(
    tokenizer: Any,
    *,
    chat_format: ChatFormat | None = None,
    defaults: SamplingDefaults | None = None,
    draws: Sequence[int] = (),
) -> Generator:
    engine = ScriptedEngine([Script(token_ids=list(draws))])
    return Generator(engine, tokenizer, chat_format, "testing", WINDOW, defaults)


async def _prepare(generator: Generator, **fields: Any) -> PreparedPrompt:
    return await generator.prepare(TextRequest(request_id="r", **fields))
