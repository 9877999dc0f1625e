"""Thumbs: whose answers may be rated, and what becomes of a rating."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.access import AccessConfig, AuthConfig
from serving.api.answered import Answer
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import MODEL, ApiMaker, chat_body, text_body
from tests.serving.events.recording import events_of, log_of

PATH = "/v1/feedback"
MESSAGES = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


class Rated:
    """A server that two tenants use, and its event log."""

    def __init__(self, make_api: ApiMaker, folder: Path, *, text: bool) -> None:
        keys = KeyStore(folder / "keys.sqlite")
        access = AccessConfig(auth=AuthConfig(keys=folder / "keys.sqlite"))
        gateway = Gateway(access, identity=Identity(access, keys=keys))
        self.path = folder / "events.sqlite"
        self.log = log_of(self.path, text=text, sample=0.0)
        self.api = make_api(*[make_api.says("fine")] * 5, gateway=gateway, events=self.log)
        self.headers = {
            name: {"authorization": f"Bearer {keys.create(tenant, scopes).text}"}
            for name, tenant, scopes in (
                ("ours", "acme", [Scope.INFERENCE]),
                ("theirs", "else", [Scope.INFERENCE]),
                ("books", "acme", [Scope.USAGE]),
            )
        }

    async def ask(self, path: str, body: Any) -> Any:
        reply = await self.api.post(path, body, headers=self.headers["ours"])
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def rate(self, status: int = 200, who: str = "ours", **body: Any) -> Any:
        reply = await self.api.post(PATH, body, headers=self.headers[who])
        assert reply.status_code == status, reply.text
        return reply.json()

    def told(self) -> list[dict[str, Any]]:
        self.log.close()
        return [event for event in events_of(self.path) if event["type"] == "weft.feedback.given.v1"]

    def counted(self, model: str, rating: str) -> float | None:
        labels = {"model_name": model, "rating": rating}
        return self.api.service.metrics.registry.get_sample_value("weft_feedback_total", labels)


@pytest.fixture(params=[False], ids=["without text"])
def rated(make_api: ApiMaker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rated]:
    made = Rated(make_api, tmp_path, text=request.param)
    yield made
    made.log.close()


async def test_answers_of_every_protocol_can_be_rated_and_are_known(rated: Rated) -> None:
    stored = await rated.ask("/v1/responses", {"input": "hi"})
    unstored = await rated.ask("/v1/responses", {"input": "hi", "store": False})
    for reply in (
        await rated.ask("/v1/chat/completions", chat_body()),
        await rated.ask("/v1/completions", text_body()),
        await rated.ask("/v1/messages", MESSAGES),
        stored,
        unstored,
    ):
        told = await rated.rate(id=reply["id"], rating="up")
        assert told == {"object": "feedback", "id": reply["id"], "rating": "up", "known": True}
    assert rated.counted(MODEL, "up") == 5
    assert len(rated.told()) == 5


async def test_a_response_that_this_process_has_forgotten_is_found_in_the_store_and_another_answer_is_believed(
    rated: Rated,
) -> None:
    response = await rated.ask("/v1/responses", {"input": "hi"})
    chat = await rated.ask("/v1/chat/completions", chat_body())
    for number in range(20_000):
        rated.api.service.answered.note(str(number), Answer("acme", MODEL, ""))
    assert (await rated.rate(response_id=response["id"], rating="down"))["known"]
    assert not (await rated.rate(id=chat["id"], rating="down"))["known"]
    assert (rated.counted(MODEL, "down"), rated.counted("unknown", "down")) == (1, 1)


async def test_an_answer_is_its_tenants_to_rate(rated: Rated) -> None:
    for path, body in (("/v1/chat/completions", chat_body()), ("/v1/responses", {"input": "hi"})):
        reply = await rated.ask(path, body)
        await rated.rate(404, "theirs", id=reply["id"], rating="down")
        await rated.rate(403, "books", id=reply["id"], rating="down")
    assert rated.told() == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"id": "chatcmpl-1", "rating": "up"}),
        (404, {"id": "resp_" + "0" * 48, "rating": "up"}),
        (400, {"rating": "up"}),
        (400, {"id": "0" * 32, "response_id": "0" * 32, "rating": "up"}),
        (400, {"id": "0" * 32, "rating": "sideways"}),
        (400, {"id": "0" * 32}),
        (400, {"id": "0" * 129, "rating": "up"}),
        (400, {"id": "0" * 32, "rating": "up", "reason": "x" * 2001}),
        (400, {"id": "0" * 32, "rating": "up", "stars": 5}),
    ],
)
async def test_what_is_no_rating_of_an_answer_is_refused(rated: Rated, status: int, body: dict[str, Any]) -> None:
    assert "error" in await rated.rate(status, **body)


@pytest.mark.parametrize("rated", [False, True], ids=["without text", "with text"], indirect=True)
async def test_a_rating_is_told_to_the_event_log_with_its_reason_where_the_log_has_text(rated: Rated) -> None:
    reply = await rated.ask("/v1/chat/completions", chat_body())
    for rating, reason in (("up", None), ("up", None), ("down", None), ("down", "it is quixotry")):
        await rated.rate(id=reply["id"], rating=rating, reason=reason, user="ada")
    assert (rated.counted(MODEL, "up"), rated.counted(MODEL, "down")) == (1, 1)
    first, second, third = rated.told()  # of no sample: the request itself is not recorded
    assert [one["data"]["rating"] for one in (first, second, third)] == ["up", "down", "down"]
    assert first["subject"] == reply["id"].removeprefix("chatcmpl-")
    assert (first["data"]["model"], first["data"]["tenant"], first["data"]["known"]) == (MODEL, "acme", True)
    assert first["data"]["user"] not in ("", "ada")
    assert third["data"].get("reason") == ("it is quixotry" if rated.log.with_text else None)
