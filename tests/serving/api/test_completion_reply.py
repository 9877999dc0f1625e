from typing import Any, cast

import pytest

from serving.engine.request import GenerateRequest
from serving.engine.resume import ResumingEngine
from tests.fakes.engine import Script, ScriptedEngine
from tests.fakes.mortal_engine import MortalEngine
from tests.serving.api.conftest import MODEL, WINDOW, ApiMaker, text_body, text_of

PATH = "/v1/completions"


def _echoing_engine(make_api: ApiMaker) -> ScriptedEngine:
    """Answers each prompt with its own text, so that a test sees which answer belongs to which."""

    def script(request: GenerateRequest) -> Script:
        return Script(token_ids=[*request.prompt_token_ids, *make_api.tokenizer.eos_token_ids])

    return ScriptedEngine(script_for=script, vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)


async def test_a_whole_answer_has_text_reason_and_usage(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("abc"))
    reply = (await api.post(PATH, text_body())).json()
    assert (reply["object"], reply["model"]) == ("text_completion", MODEL)
    assert reply["choices"] == [
        {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert reply["usage"]["total_tokens"] == 2 + 4


async def test_a_stream_joined_is_the_whole_answer(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("naïve 😀"))
    chunks = await api.events(PATH, text_body(stream_options={"include_usage": True}))
    assert text_of(chunks) == "naïve 😀"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == len("naïve 😀".encode()) + 1


async def test_sixteen_tokens_are_made_where_the_client_sets_no_limit(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x" * 40))
    (choice,) = (await api.post(PATH, text_body())).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x" * 16, "length")


async def test_a_prompt_that_leaves_less_than_sixteen_tokens_gets_what_is_left(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x" * 40))
    reply = await api.post(PATH, text_body(prompt="a" * (WINDOW - 5)))
    (choice,) = reply.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x" * 5, "length")
    assert (await api.post(PATH, text_body(prompt="a" * (WINDOW - 5), max_tokens=16))).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_numbered_prompt_by_prompt(make_api: ApiMaker, stream: bool) -> None:
    api = make_api(engine=_echoing_engine(make_api))
    body = text_body(prompt=["ab", "cde", "f"], n=2)
    expected = ["ab", "ab", "cde", "cde", "f", "f"]
    if stream:
        chunks = await api.events(PATH, body)
        assert [text_of(chunks, index) for index in range(6)] == expected
        ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert sorted(ends) == list(range(6))
    else:
        reply = (await api.post(PATH, body)).json()
        assert [choice["text"] for choice in reply["choices"]] == expected
        assert [choice["index"] for choice in reply["choices"]] == list(range(6))
        assert reply["usage"]["prompt_tokens"] == 6
        assert reply["usage"]["completion_tokens"] == 12 + 6


@pytest.mark.parametrize("prompt", [[64, 65], [[64, 65], [66]]])
async def test_prompts_may_be_token_ids(make_api: ApiMaker, prompt: list[Any]) -> None:
    api = make_api(engine=_echoing_engine(make_api))
    reply = (await api.post(PATH, text_body(prompt=prompt, echo=True))).json()
    assert reply["choices"][0]["text"] == "abab"
    assert api.engine.requests[0].prompt_token_ids == (64, 65)


async def test_logprobs_give_each_token_its_place_in_the_text(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ab", cached_tokens=1))
    (choice,) = (await api.post(PATH, text_body(logprobs=1, max_tokens=2))).json()["choices"]
    a, b = api.engine.scripts[0].token_ids[:2]
    assert choice["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [pytest.approx(-a / 1000), pytest.approx(-b / 1000)],
        "tokens": ["a", "b"],
        "top_logprobs": [{"a": pytest.approx(-a / 1000)}, {"b": pytest.approx(-b / 1000)}],
    }
    chunks = await api.events(PATH, text_body(logprobs=1, max_tokens=2))
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["text_offset"] for entry in streamed] == [[0], [1]]
    assert [entry["tokens"] for entry in streamed] == [["a"], ["b"]]


async def test_offsets_are_places_in_the_text_whatever_its_tokens_read_by_themselves(make_api: ApiMaker) -> None:
    """A part of a character reads U+FFFD and the character is one; a special token that is left out takes no room."""
    user = make_api.ids("<|im_start|>")
    api = make_api(Script(token_ids=[*make_api.ids("é"), *user, *make_api.ids("x")]))
    body = text_body(prompt=[*make_api.ids("ü"), *user, *make_api.ids("a")], logprobs=0, max_tokens=4)
    chunks = await api.events(PATH, body)
    assert text_of(chunks) == "éx"
    assert [at for c in chunks for at in c["choices"][0]["logprobs"]["text_offset"]] == [0, 0, 1, 1]
    (choice,) = (await api.post(PATH, {**body, "echo": True})).json()["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("üaéx", [0, 0, 1, 1, 2, 2, 3, 3])
    (choice,) = (await api.post(PATH, {**body, "echo": True, "skip_special_tokens": False})).json()["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 13, 14, 14, 15, 27]
    assert choice["text"][13:14] + choice["text"][27:] == "ax"


async def test_echo_puts_the_prompt_and_its_logprobs_before_the_answer(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("yz"))
    (choice,) = (await api.post(PATH, text_body(prompt="ab", echo=True, logprobs=0, max_tokens=1))).json()["choices"]
    assert choice["text"] == "aby"
    assert choice["logprobs"]["tokens"] == ["a", "b", "y"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert text_of(await api.events(PATH, text_body(prompt="ab", echo=True))) == "abyz"


@pytest.mark.parametrize(("echoed", "of_prompt"), [(5, 0), (0, 5), (3, 3)])
async def test_echoed_logprobs_and_prompt_logprobs_have_each_their_own_count(
    make_api: ApiMaker, echoed: int, of_prompt: int
) -> None:
    api = make_api(make_api.says("y"))
    body = text_body(prompt="ab", echo=True, logprobs=echoed, prompt_logprobs=of_prompt, max_tokens=1)
    (choice,) = (await api.post(PATH, body)).json()["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [max(echoed, 1)] * 2  # the token is in it
    assert len(choice["prompt_logprobs"][1]) == max(of_prompt, 1)


async def test_a_negative_count_of_prompt_logprobs_is_refused_with_echo_too(make_api: ApiMaker) -> None:
    reply = await make_api().post(PATH, text_body(echo=True, logprobs=5, prompt_logprobs=-1))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_token_ids_and_prompt_logprobs_stand_in_the_choice(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("y"))
    (choice,) = (await api.post(PATH, text_body(prompt="ab", return_token_ids=True, prompt_logprobs=0))).json()[
        "choices"
    ]
    assert choice["prompt_token_ids"] == make_api.ids("ab")
    assert choice["token_ids"] == list(api.engine.scripts[0].token_ids)
    assert [entry is None for entry in choice["prompt_logprobs"]] == [True, False]
    chunks = await api.events(PATH, text_body(prompt="ab", return_token_ids=True))
    assert chunks[0]["choices"][0]["prompt_token_ids"] == make_api.ids("ab")
    assert "prompt_token_ids" not in chunks[-1]["choices"][0]


async def test_one_prompt_that_fails_ends_the_whole_request_and_aborts_the_others(make_api: ApiMaker) -> None:
    long = make_api.ids("x" * 9)
    scripts = [Script(token_ids=long, hold_after=2), Script(token_ids=[], raises=ValueError("broken"))]
    api = make_api(*scripts)
    reply = await api.post(PATH, text_body(prompt=["ab", "cd"]))
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert len(api.engine.closed) == 1
    assert api.service.slots.open == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True, "logprobs": 1, "stream": True}, "logprobs"),
    ],
)
async def test_what_completions_cannot_do_is_refused(make_api: ApiMaker, fields: dict[str, Any], param: str) -> None:
    reply = await make_api().post(PATH, text_body(**fields))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_what_asks_for_nothing_is_let_through(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    assert (await api.post(PATH, text_body(best_of=2, n=2, suffix=""))).status_code == 200


async def test_no_token_is_made_where_only_the_prompt_is_to_be_scored(make_api: ApiMaker) -> None:
    """How evaluation harnesses ask for the likelihood of a text."""
    api = make_api(make_api.says("never"))
    a, b = make_api.ids("ab")
    body = text_body(prompt=[[a, b], [b, a]], echo=True, logprobs=1, max_tokens=0, temperature=0)
    reply = (await api.post(PATH, body)).json()
    assert [choice["text"] for choice in reply["choices"]] == ["ab", "ba"]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 2
    assert reply["choices"][0]["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [None, pytest.approx(-b / 1000)],
        "tokens": ["a", "b"],
        "top_logprobs": [None, {"b": pytest.approx(-b / 1000)}],
    }
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (4, 0)
    assert [request.sampling.max_tokens for request in api.engine.requests] == [0, 0]


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"prompt_logprobs": 2}, {"echo": True, "prompt_logprobs": 0, "n": 2}]
)
async def test_scoring_gives_what_was_asked_for_and_no_more(make_api: ApiMaker, fields: dict[str, Any]) -> None:
    reply = (await make_api(make_api.says("never")).post(PATH, text_body(max_tokens=0, **fields))).json()
    for choice in reply["choices"]:
        assert choice["text"] == ("hi" if fields.get("echo") else "")
        assert choice["logprobs"] is None
        scores = choice.get("prompt_logprobs")
        assert (scores and len(scores)) == (2 if "prompt_logprobs" in fields else None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "max_tokens"),
        ({"logprobs": 1}, "max_tokens"),
        ({"echo": True, "stream": True}, "max_tokens"),
        ({"echo": True, "min_tokens": 1}, "min_tokens"),
    ],
)
async def test_scoring_that_would_answer_nothing_is_refused(
    make_api: ApiMaker, fields: dict[str, Any], param: str
) -> None:
    reply = await make_api().post(PATH, text_body(max_tokens=0, **fields))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_prompt_that_fills_the_window_can_be_scored(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("never"))
    reply = await api.post(PATH, text_body(prompt="a" * WINDOW, max_tokens=0, echo=True, logprobs=0))
    assert len(reply.json()["choices"][0]["logprobs"]["tokens"]) == WINDOW
    beyond = await api.post(PATH, text_body(prompt="a" * (WINDOW + 1), max_tokens=0, echo=True, logprobs=0))
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_an_engine_lost_before_it_scored_the_prompt_costs_nothing_but_time(make_api: ApiMaker) -> None:
    inner = MortalEngine(life=0)

    async def restart(_: float) -> None:
        inner.revive()

    api = make_api(engine=cast(ScriptedEngine, ResumingEngine(inner, sleep=restart)))
    reply = await api.post(PATH, text_body(prompt=[1, 2, 3], max_tokens=0, echo=True, logprobs=0))
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.02, -0.03]
