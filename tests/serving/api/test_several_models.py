"""Two models behind one API: chosen by name and by rules, and the smaller one in place of the larger."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from serving.api.http import build_app
from serving.api.metered_engine import MeteredEngine
from serving.api.service import ModelCard, ModelParts
from serving.config import ServerConfig
from serving.engine.client import EngineStats
from serving.engine.remote import NOT_ACCEPTED
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineUnavailableError
from serving.gateway.gateway import Gateway
from serving.generation.generator import Generator
from serving.observability.metrics import Metrics
from serving.settings.routing import RoutingConfig, RoutingRule
from tests.fakes.engine import ScriptedEngine
from tests.serving.api.conftest import Api, ApiMaker, Body
from tests.serving.gateway.asks import ask, principal

BIG_WINDOW, SMALL_WINDOW = 4096, 1024
ROUTING = RoutingConfig(
    fallback={"big": "small"},
    rules=(
        RoutingRule(model="auto", target="small", max_prompt_tokens=60),
        RoutingRule(model="auto", target="big"),
    ),
)
NOTICE = {"asked": "big", "answered_by": "small", "reason": "engine_down"}


class Killable(ScriptedEngine):
    alive = True
    crowd = 0  # streams of others
    watch: Callable[[GenerateRequest], object] = staticmethod(lambda _: None)

    async def stats(self) -> EngineStats:
        self._check()
        return replace(await super().stats(), running=self.crowd, waiting=self.crowd)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        self._check()
        self.watch(request)
        async for event in super().generate(request):
            yield event

    def _check(self) -> None:
        if not self.alive:
            raise EngineUnavailableError("the engine does not answer", code=NOT_ACCEPTED)


class Pair(Api):
    big: Killable
    small: Killable

    async def ask(self, **fields: Any) -> Any:
        """A chat completion's reply."""
        return await self.post("/v1/chat/completions", _chat(**fields))


def _chat(**fields: Any) -> Body:
    return {"model": "big", "messages": [{"role": "user", "content": "hi"}], **fields}


@pytest.fixture
def pair(make_api: ApiMaker) -> Pair:
    """Each model says its own name."""
    gateway, metrics, parts = Gateway(), Metrics("big"), []
    for name, window in (("big", BIG_WINDOW), ("small", SMALL_WINDOW)):
        script = make_api.says(f"I am {name}.")
        engine = Killable(scripts=[script] * 8, vocab_size=make_api.tokenizer.vocab_size, max_model_len=window)
        own = metrics if name == "big" else metrics.of(name)
        guarded = gateway.guard(MeteredEngine(engine, own), name, can_fall_back=name == "big")
        generator = Generator(guarded, make_api.tokenizer, make_api.chat_format, name, window)
        card = ModelCard(name=name, created=1_700_000_000, max_model_len=window)
        parts.append(ModelParts(generator=generator, engine=engine, metrics=own, card=card))
    big, small = parts
    app = build_app(
        big.generator,
        big.engine,
        ServerConfig(),
        big.card,
        metrics=metrics,
        gateway=gateway,
        further=[small],
        routing=ROUTING,
    )
    made = Pair(app, big.engine)
    made.big, made.small = big.engine, small.engine
    return made


@pytest.mark.parametrize("name", ["big", "small"])
async def test_the_model_that_is_named_answers_under_its_name(pair: Pair, name: str) -> None:
    reply = await pair.ask(model=name)
    assert reply.json()["model"] == name
    assert reply.json()["choices"][0]["message"]["content"] == f"I am {name}."
    assert "fallback" not in reply.json()
    assert "weft-fallback" not in reply.headers


async def test_open_streams_are_counted_under_the_model_that_answers(pair: Pair) -> None:
    registry = pair.service.metrics.registry
    for name, other in (("big", "small"), ("small", "big")):
        seen: list[float | None] = []

        def look(_: object, seen: list[float | None] = seen, names: tuple[str, str] = (name, other)) -> None:
            seen += [registry.get_sample_value("weft_open_streams", {"model_name": one}) for one in names]

        engine = pair.big if name == "big" else pair.small
        engine.watch = look
        await pair.ask(model=name, n=2)
        assert seen[:2] == [2, 0]


async def test_the_models_are_listed_and_others_are_not_found(pair: Pair) -> None:
    listed = (await pair.get("/v1/models")).json()["data"]
    assert {model["id"]: model["max_model_len"] for model in listed} == {"big": 4096, "small": 1024, "auto": 4096}
    refused = await pair.ask(model="huge")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_each_model_counts_with_its_own_window(pair: Pair) -> None:
    for name, window in (("big", BIG_WINDOW), ("small", SMALL_WINDOW)):
        assert (await pair.post("/tokenize", {"model": name, "prompt": "abc"})).json()["max_model_len"] == window
    unclear = await pair.post("/tokenize", {"model": "auto", "prompt": "abc"})
    assert (unclear.status_code, unclear.json()["error"]["code"]) == (400, "several_models")


async def test_while_the_engine_is_away_the_smaller_model_answers_and_says_so(pair: Pair) -> None:
    pair.big.alive = False
    reply = await pair.ask()
    assert reply.json()["choices"][0]["message"]["content"] == "I am small."
    assert (reply.json()["model"], reply.json()["fallback"]) == ("small", NOTICE)
    assert reply.headers["weft-fallback"] == "small; asked=big; reason=engine_down"
    chunks = await pair.events("/v1/chat/completions", _chat())
    assert {chunk["model"] for chunk in chunks} == {"small"}
    assert chunks[0]["fallback"] == NOTICE
    text = await pair.post("/v1/completions", {"model": "big", "prompt": "hi"})
    assert (text.json()["model"], text.json()["fallback"]) == ("small", NOTICE)
    chunks = await pair.events("/v1/completions", {"model": "big", "prompt": "hi"})
    assert chunks[0]["fallback"] == NOTICE
    pair.big.alive = True
    while (back := await pair.ask()).json()["model"] != "big":
        pass
    assert "fallback" not in back.json()


async def test_a_model_with_more_to_do_than_it_can_gives_its_requests_to_the_smaller_one(pair: Pair) -> None:
    pair.big.crowd = 8  # as many as its batch has rows
    gateway = pair.service.gateway
    async with AsyncExitStack() as held:
        for number in range(100):
            if gateway.load("big", principal(), None).is_over:
                break
            await held.enter_async_context(gateway.admit(principal(), replace(ask(f"r{number}"), base="big")))
            await asyncio.sleep(0)  # the gateway looks at the engine meanwhile
        reply = (await pair.ask()).json()
        assert (reply["model"], reply["fallback"]) == ("small", {**NOTICE, "reason": "engine_full"})
        refused = await pair.ask(fallback=False)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_too_long")
        assert (await pair.ask(model="small")).status_code == 200  # its queue is its own


async def test_messages_and_responses_say_so_too(pair: Pair) -> None:
    pair.big.alive = False
    messages = [{"role": "user", "content": "hi"}]
    told = (await pair.post("/v1/messages", {"model": "big", "max_tokens": 50, "messages": messages})).json()
    assert (told["model"], told["fallback"]) == ("small", NOTICE)
    response = (await pair.post("/v1/responses", {"model": "big", "input": "hi"})).json()
    assert response["model"] == "small"
    assert [(notice["kind"], notice["facts"]) for notice in response["notices"]] == [("fallback", NOTICE)]


async def test_who_forbids_it_is_told_that_the_engine_is_away(pair: Pair) -> None:
    pair.big.alive = False
    for path, body in (
        ("/v1/chat/completions", _chat(fallback=False)),
        ("/v1/completions", {"model": "big", "prompt": "hi", "fallback": False}),
        ("/v1/messages", {**_chat(fallback=False), "max_tokens": 5}),
        ("/v1/responses", {"model": "big", "input": "hi", "fallback": False}),
    ):
        assert (await pair.post(path, body)).status_code == 503
    assert not pair.small.requests


async def test_what_the_smaller_model_cannot_take_is_not_given_to_it(pair: Pair) -> None:
    pair.big.alive = False
    for body in (
        {"prompt": "a" * (SMALL_WINDOW + 1)},
        {"prompt": [1, 2, 3]},
        {"prompt": "hi", "logit_bias": {"5": 1.0}},
    ):
        reply = await pair.post("/v1/completions", {"model": "big", **body})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    assert not pair.small.requests


async def test_a_durable_stream_goes_on_with_the_model_that_began_it(pair: Pair) -> None:
    pair.big.alive = False
    async with pair.client() as client:
        reply = await client.post("/v1/chat/completions", json=_chat(stream=True, durable=True))
        pair.big.alive = True
        again = await client.get(f"/v1/streams/{reply.headers['x-weft-stream-id']}")
    assert again.text == reply.text
    first = json.loads(again.text.split("data: ", 2)[1].split("\n")[0])
    assert (first["model"], first["fallback"]) == ("small", NOTICE)


async def test_rules_choose_by_the_prompts_length(pair: Pair) -> None:
    assert (await pair.ask(model="auto")).json()["model"] == "small"
    long = [{"role": "user", "content": "hi" * 50}]
    assert (await pair.ask(model="auto", messages=long)).json()["model"] == "big"
    ids = await pair.post("/v1/completions", {"model": "auto", "prompt": [1, 2]})
    assert (ids.status_code, ids.json()["error"]["param"]) == (400, "model")


async def test_a_model_that_the_rules_found_is_stood_in_for_as_any_other(pair: Pair) -> None:
    pair.big.alive = False
    reply = (await pair.ask(model="auto", messages=[{"role": "user", "content": "hi" * 50}])).json()
    assert (reply["model"], reply["fallback"]) == ("small", NOTICE)


async def test_the_server_is_ready_while_somebody_stands_in_and_names_who_is_there(pair: Pair) -> None:
    assert (await pair.get("/health/ready")).json()["models"] == {"big": "ready", "small": "ready"}
    pair.big.alive = False
    ready = await pair.get("/health/ready")
    assert (ready.status_code, ready.json()["models"]) == (200, {"big": "engine_unavailable", "small": "ready"})
    pair.big.alive, pair.small.alive = True, False
    assert (await pair.get("/health/ready")).status_code == 503  # nobody stands in for the small one


async def test_metrics_are_told_for_each_model(pair: Pair) -> None:
    await pair.ask(model="small")
    pair.big.alive = False
    await pair.ask()
    lines = (await pair.get("/metrics")).text.splitlines()
    assert 'weft_fallbacks_total{answered_by="small",model_name="big",reason="engine_down"} 1.0' in lines
    assert 'vllm:request_success_total{finished_reason="stop",model_name="small"} 2.0' in lines
    assert 'weft_engine_up{model_name="big"} 0.0' in lines
    assert 'weft_engine_up{model_name="small"} 1.0' in lines
    assert sum(line.startswith("# TYPE weft_engine_up ") for line in lines) == 1
