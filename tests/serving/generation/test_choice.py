import random
from pathlib import Path

import pytest

from serving.engine.request import FinishReason, SamplingParams, TokenEvent, TokenLogprobs
from serving.generation.choice import Choice
from serving.generation.detokenizer import Detokenizer
from serving.generation.request import PreparedPrompt, TextDelta
from serving.generation.stop_strings import StopStrings
from serving.generation.tokenizer import Tokenizer, load_tokenizer
from serving.sessions.logged_generation import LoggedEvent


@pytest.mark.parametrize("include", [False, True])
def test_any_tokens_stops_and_chunks_give_the_text_before_the_first_stop(
    any_tokenizer: Tokenizer, include: bool
) -> None:
    draw = random.Random(17)
    for _ in range(150):
        ids = [draw.randrange(any_tokenizer.vocab_size) for _ in range(draw.randrange(1, 25))]
        texts = _texts(any_tokenizer, ids)
        stops = _some_substrings(draw, texts[-1])
        deltas = _feed(any_tokenizer, ids, stops, include, draw)
        cut, stop, needed = _expected(texts, stops, include)
        assert "".join(delta.text for delta in deltas) == texts[-1][:cut]
        assert deltas[-1].stop_reason == stop
        assert deltas[-1].finish_reason is (FinishReason.STOP if stop else FinishReason.LENGTH)
        assert deltas[-1].usage.completion_tokens == needed
        told = [token for delta in deltas for token in delta.token_ids]
        assert told == ids[: len(told)]
        assert [entry.token.token_id for delta in deltas for entry in delta.logprobs] == told
        if stop is None:
            assert told == ids
        elif not include:
            assert len(_texts(any_tokenizer, told)[-1].rstrip("\ufffd")) <= cut


def test_nothing_is_told_of_a_token_whose_text_is_held_back(byte_level: Path) -> None:
    tokenizer = load_tokenizer(byte_level)
    ids = tokenizer.encode("hello world", add_special_tokens=False)
    choice = _choice(tokenizer, ["hello worlds"], False)
    assert [choice.feed(TokenEvent(request_id="r", token_ids=(token,))) for token in ids] == [None] * len(ids)
    last = choice.feed(TokenEvent(request_id="r", finish_reason=FinishReason.LENGTH))
    assert last is not None
    assert (last.text, last.token_ids) == ("hello world", tuple(ids))


@pytest.mark.parametrize(("stop", "completion", "accepted"), [("a", 1, 0), ("b", 2, 1), ("e", 5, 3), ("never", 6, 3)])
def test_guesses_are_counted_to_where_a_stop_string_ends_the_text_as_a_reader_of_the_log_counts_them(
    byte_level: Path, stop: str, completion: int, accepted: int
) -> None:
    tokenizer = load_tokenizer(byte_level)
    ids = tuple(token for letter in "abcdef" for token in tokenizer.encode(letter, add_special_tokens=False))
    event = TokenEvent(
        request_id="r", token_ids=ids, guessed_tokens=4, accepted_tokens=3, finish_reason=FinishReason.LENGTH
    )
    for parts in ([event], [*LoggedEvent(0, 0, event).by_token()]):
        choice, last = _choice(tokenizer, [stop], False), None
        for part in parts:
            last = choice.feed(part) or last
            if last is not None and last.finish_reason is not None:
                break
        assert last is not None
        assert last.usage.completion_tokens == completion
        assert (last.usage.guessed_tokens, last.usage.accepted_tokens) == (4, accepted)


def _choice(tokenizer: Tokenizer, stops: list[str], include: bool) -> Choice:
    prepared = PreparedPrompt(
        request_id="r",
        prompt_token_ids=(),
        prompt_text=None,
        sampling=SamplingParams(max_tokens=100, logprobs=0),
        n=1,
        stop=tuple(stops),
        include_stop_str_in_output=include,
        skip_special_tokens=True,
        kept_special_tokens=frozenset(),
        cache_salt="",
    )
    return Choice(0, prepared, StopStrings(stops), tokenizer)


def _feed(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], include: bool, draw: random.Random
) -> list[TextDelta]:
    choice = _choice(tokenizer, stops, include)
    deltas: list[TextDelta] = []
    at = 0
    while at < len(ids) and not (deltas and deltas[-1].finish_reason):
        part = tuple(ids[at : at + draw.randrange(1, 5)])
        at += len(part)
        event = TokenEvent(
            request_id="r",
            token_ids=part,
            logprobs=tuple(TokenLogprobs(token, -1.0, 1) for token in part),
            finish_reason=FinishReason.LENGTH if at >= len(ids) else None,
        )
        delta = choice.feed(event)
        deltas += [] if delta is None else [delta]
    return deltas


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text after each token; the last one with the flush at the end."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True)
    texts, text = [], ""
    for token in ids:
        text += detokenizer.add(token)
        texts.append(text)
    return [*texts, text + detokenizer.finish()]


def _some_substrings(draw: random.Random, text: str) -> list[str]:
    stops = ["never there"]
    for _ in range(draw.randrange(3)):
        start = draw.randrange(len(text) + 1)
        stops += [part] if (part := text[start : start + draw.randrange(1, 6)]) else []
    return stops


def _expected(texts: list[str], stops: list[str], include: bool) -> tuple[int, str | None, int]:
    """Where the text is cut, by which stop string, and after how many tokens."""
    whole = texts[-1]
    for end in range(1, len(whole) + 1):
        found = [stop for stop in stops if whole[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            needed = next(count for count, text in enumerate(texts, 1) if len(text) >= end)
            return end if include else end - len(stop), stop, min(needed, len(texts) - 1)
    return len(whole), None, len(texts) - 1
