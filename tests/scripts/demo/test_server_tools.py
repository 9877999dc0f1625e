"""The dialogues on the server's own tools hold what a served turn would: schemas, calls, results and markers."""

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from scripts.demo.dialogue import Exchange
from scripts.demo.dialogues import file_search, remote_tools, server_tools
from scripts.demo.draw import Draw
from serving.orchestrator.retrieval.citations import CitedText
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.sandbox import Sandbox


def exchanges(seed: int, count: int) -> list[Exchange]:
    draw = Draw(seed)
    makers = [server_tools.calculations, server_tools.date_questions, server_tools.programs, file_search.search]
    return [exchange for index in range(count) for exchange in makers[index % 4](draw).exchanges]


def test_the_code_interpreter_is_offered_in_the_servers_own_words() -> None:
    tool = CodeInterpreter(Sandbox())
    own = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    assert server_tools.SCHEMAS["code_interpreter"]["function"] == own


def test_every_call_of_a_tool_of_the_server_keeps_to_its_schema() -> None:
    validators = {
        name: jsonschema.Draft202012Validator(schema["function"]["parameters"])  # pyright: ignore[reportIndexIssue]
        for name, schema in server_tools.SCHEMAS.items()
    }
    for exchange in exchanges(1, 200):
        for call in exchange.calls:
            validators[call.name].validate(call.arguments)


def test_no_two_of_the_tools_offered_share_a_name() -> None:
    draw = Draw(2)
    for name in list(server_tools.SCHEMAS) * 50:
        names = [json.dumps(tool["function"]["name"]) for tool in server_tools.beside(draw, name)]  # pyright: ignore
        assert len(names) == len(set(names))


def test_the_programs_print_what_the_dialogues_say_they_print() -> None:
    draw, programs = Draw(3), dict[str, str]()
    while len(programs) < 40:
        exchange = server_tools.program(draw)
        result = exchange.calls[0].result
        if "stderr:" not in result:
            code = str(exchange.calls[0].arguments["code"])
            programs[code] = result.split("\n", 1)[1].rsplit("\n", 1)[0]
    together = "\nprint('-----')\n".join(programs)
    done = subprocess.run([sys.executable, "-I", "-c", together], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n").split("\n-----\n") == list(programs.values())


def test_a_failed_program_and_a_failed_sum_are_told_as_failures() -> None:
    told = [exchange for exchange in exchanges(4, 400) if "failed" in exchange.answer]
    assert {exchange.calls[0].name for exchange in told} == {"calculator", "code_interpreter"}
    for exchange in told:
        assert exchange.answer.split("failed: ")[1].rstrip(".") in exchange.calls[0].result


@pytest.mark.parametrize("seed", [5, 6])
def test_an_answer_from_the_files_cites_the_passage_that_holds_it(seed: int) -> None:
    draw, absent = Draw(seed), 0
    for _ in range(100):
        for exchange in file_search.search(draw).exchanges:
            result = exchange.calls[0].result
            if exchange.answer.endswith(f" {file_search.NOT_THERE}."):
                absent += 1
                continue
            passages = result.split('&lt;document id="')[1:]
            sources = [{"marker": text[:5], "file_id": "f", "filename": "n", "quote": text} for text in passages]
            text = CitedText(sources)
            told, annotations = text.feed(exchange.answer) + text.finish(), text.annotations
            assert len(annotations) == 1
            value = told.rstrip(".").split(" is " if " is " in told else " are ", 1)[1]
            assert value.lower() in annotations[0]["quote"].lower()
            assert str(exchange.calls[0].arguments["query"]) in exchange.user
    assert absent


def test_what_is_not_there_yet_is_asked_for_again_with_the_same_call() -> None:
    draw, waited = Draw(7), 0
    for _ in range(60):
        (exchange,) = remote_tools.remote_tools(draw).exchanges
        *early, last = exchange.calls
        assert all((call.name, call.arguments) == (last.name, last.arguments) for call in early)
        assert all(any(word in call.result for word in remote_tools.PENDING) for call in early)
        assert last.result.startswith(f'<result id="{last.name}">')
        waited += len(early)
    assert waited


def test_some_remote_tools_have_titles_as_the_protocols_own_package_writes_them() -> None:
    draw, titled = Draw(8), 0
    for _ in range(60):
        for tool in remote_tools.remote_tools(draw).tools:
            function: Any = tool["function"]
            if "title" not in function["parameters"]:
                continue
            titled += 1
            assert function["name"].endswith("__" + function["parameters"]["title"].removesuffix("Arguments"))
            assert all("title" in entry for entry in function["parameters"]["properties"].values())
    assert titled
