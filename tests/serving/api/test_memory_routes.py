from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from serving.engine.request import FinishReason, GenerateRequest, TokenEvent
from serving.generation.chat_format import ChatFormat
from serving.orchestrator.memory.entries import Person
from serving.orchestrator.memory.memories import Memories
from serving.settings.memory import MemoryConfig
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.api.conftest import TEMPLATE, WINDOW, Api, ApiMaker
from tests.serving.api.responses.asking import ask, create, prompt, refused


@pytest.fixture
def api(make_api: ApiMaker, tmp_path: Path) -> Iterator[Api]:
    memories = Memories(MemoryConfig(path=tmp_path / "memory.sqlite", strategy="hierarchical", block=2))
    yield make_api(make_api.says("Noted."), memories=memories)
    memories.close()


async def test_what_a_user_said_in_one_conversation_is_recalled_in_another(api: Api) -> None:
    await create(api, "My cat is called Tom.", user="ann")
    await create(api, "What is my cat called?", user="ben")
    assert "Tom" not in prompt(api)
    reply = await create(api, "What is my cat called?", user="ann")
    assert "User: My cat is called Tom." in prompt(api)
    assert prompt(api).index("Tom") > prompt(api).index("<note"), "it is marked as data"
    assert [notice["kind"] for notice in reply["notices"]] == ["memory_used"]


async def test_what_is_not_to_be_stored_is_not_remembered_either(api: Api) -> None:
    await create(api, "My cat is called Tom.", user="ann")
    await create(api, "My dog is called Rex.", user="ann", store=False)
    (entry,) = (await ask(api, "GET", "/v1/memory?user=ann"))["data"]
    assert "Tom" in entry["text"]


@pytest.mark.parametrize("user", ["u" * 257, "a\0b"])
async def test_a_user_whose_memory_nobody_could_look_at_is_refused(api: Api, user: str) -> None:
    assert (await refused(api, 400, user=user))["param"] == "user"
    assert (await refused(api, 400, safety_identifier=user))["param"] == "safety_identifier"
    await ask(api, "POST", "/v1/conversations", 400, json={"user": user})


async def test_what_is_forgotten_while_a_turn_goes_on_does_not_come_back_with_its_end(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    memories = Memories(MemoryConfig(path=tmp_path / "memory.sqlite"))

    class Forgetting(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
            await memories.forget(Person("anonymous", "ann"))
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    yield event

    says = [make_api.says("Noted.")]
    engine = Forgetting(scripts=says, vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    api = make_api(engine=engine, memories=memories)
    await create(api, "My cat is called Tom.", user="ann")
    assert (await ask(api, "GET", "/v1/memory?user=ann"))["data"] == []
    memories.close()


async def test_a_conversation_that_goes_on_has_nothing_twice(api: Api) -> None:
    first = await create(api, "My cat is called Tom.", user="ann")
    await create(api, "What is my cat called?", user="ann", previous_response_id=first["id"])
    assert prompt(api).count("My cat is called Tom.") == 1


async def test_it_can_be_looked_at_forgotten_and_switched_off(api: Api) -> None:
    await create(api, "My cat is called Tom.", user="ann")
    await create(api, "My dog is called Rex.", user="ann")
    shown = await ask(api, "GET", "/v1/memory?user=ann")
    assert (shown["enabled"], shown["strategy"]) == (True, "hierarchical")
    texts = [entry["text"] for entry in shown["data"]]
    assert texts == [f"User: My {pet}.\nAssistant: Noted." for pet in ("cat is called Tom", "dog is called Rex")]
    one = shown["data"][0]["id"]
    assert (await ask(api, "DELETE", f"/v1/memory?user=ann&id={one}"))["deleted"] == 1
    await ask(api, "DELETE", f"/v1/memory?user=ann&id={one}", 404)
    await create(api, "What is my cat called?", user="ann")
    assert "Tom" not in prompt(api)
    off = await ask(api, "POST", "/v1/memory", json={"user": "ann", "enabled": False})
    assert off["enabled"] is False
    await create(api, "What is my dog called?", user="ann")
    assert "Rex" not in prompt(api)
    kept = await ask(api, "GET", "/v1/memory?user=ann")
    assert len(kept["data"]) == len(shown["data"]), "nothing was added while it is off"
    assert (await ask(api, "DELETE", "/v1/memory?user=ann"))["deleted"] == len(kept["data"])
    assert (await ask(api, "GET", "/v1/memory?user=ann"))["data"] == []


async def test_old_exchanges_are_summarized_in_the_batch_class(api: Api) -> None:
    memories = api.service.memories
    assert memories is not None
    for number in range(4):
        await create(api, f"Fact {number}.", user="ann")
    await memories.compact()
    shown = await ask(api, "GET", "/v1/memory?user=ann")
    assert [(entry["level"], entry["text"]) for entry in shown["data"]][-1] == (1, "Noted.")
    assert api.engine.requests[-1].priority == "batch"
    assert "Summarize what follows" in prompt(api)


async def test_an_exchange_as_long_as_the_window_does_not_keep_the_memory_from_its_summaries(api: Api) -> None:
    memories = api.service.memories
    assert memories is not None
    for said in ("x" * (WINDOW - 200), "y" * (WINDOW - 200), "Fact 1.", "Fact 2."):
        await create(api, said, user="ann")
    await memories.compact()
    shown = await ask(api, "GET", "/v1/memory?user=ann")
    assert [entry["level"] for entry in shown["data"]] == [0, 0, 1]
    sampling = api.engine.requests[-1].sampling
    assert sampling.max_tokens == memories.summary_tokens, "a long prompt leaves no room for less"


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.DEADLINE])
async def test_a_summary_that_was_broken_off_takes_the_place_of_nothing(
    api: Api, make_api: ApiMaker, finish: FinishReason
) -> None:
    memories = api.service.memories
    assert memories is not None
    for number in range(4):
        await create(api, f"Fact {number}.", user="ann")
    api.engine.scripts = [Script(token_ids=make_api.ids("All of"), finish=finish)]
    await memories.compact()
    shown = await ask(api, "GET", "/v1/memory?user=ann")
    assert [entry["level"] for entry in shown["data"]] == [0] * 4


async def test_a_summary_is_without_what_the_model_reasons(make_api: ApiMaker, tmp_path: Path) -> None:
    with closing(ChatFormat({"default": f"{{# <think> #}}{TEMPLATE}"}, {}, source="thinking")) as chat_format:
        memories = Memories(MemoryConfig(path=tmp_path / "memory.sqlite", strategy="summary", block=2))
        api = ApiMaker(make_api.tokenizer, chat_format)(
            make_api.says("<think>What matters?</think>Facts."), memories=memories
        )
        for number in range(4):
            await create(api, f"Fact {number}.", user="ann")
        await memories.compact()
        assert [entry["text"] for entry in (await ask(api, "GET", "/v1/memory?user=ann"))["data"]][-1] == "Facts."
        memories.close()


async def test_a_summary_is_asked_for_without_reasoning_where_the_template_can_say_so(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    told = "{% if enable_thinking is defined %}[thinks: {{ enable_thinking }}]{% endif %}"
    thinking = f"{{# <think> #}}{TEMPLATE}{told}"
    with closing(ChatFormat({"default": thinking}, {}, source="thinking")) as chat_format:
        memories = Memories(MemoryConfig(path=tmp_path / "memory.sqlite", strategy="summary", block=2))
        api = ApiMaker(make_api.tokenizer, chat_format)(make_api.says("Facts."), memories=memories)
        for number in range(4):
            await create(api, f"Fact {number}.", user="ann")
            assert "[thinks" not in prompt(api)
        await memories.compact()
        assert "[thinks: False]" in prompt(api)
        memories.close()


@pytest.mark.parametrize("query", ["", "?user=", f"?user={'x' * 300}", "?user=ann&id=x"])
async def test_a_request_must_say_whose_memory_and_which_entry(api: Api, query: str) -> None:
    await ask(api, "DELETE", f"/v1/memory{query}", 400)


async def test_a_server_without_memories_has_no_such_path(make_api: ApiMaker) -> None:
    await ask(make_api(make_api.says("x")), "GET", "/v1/memory?user=ann", 404)
