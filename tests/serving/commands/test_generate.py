"""A batch from file to file, and again after a kill."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from serving.batch_file import BatchFile
from serving.cli import main
from serving.commands.generate import write_all
from serving.generation.chat_format import ChatFormat
from serving.generation.generator import Generator
from serving.generation.tokenizer import Tokenizer
from serving.offline import BatchGenerator
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.api.conftest import MODEL, WINDOW, chat_format, tokenizer  # noqa: F401 -- fixtures


async def test_a_second_run_adds_what_the_first_did_not_finish(
    tokenizer: Tokenizer,  # noqa: F811
    chat_format: ChatFormat,  # noqa: F811
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(scripts=[Script(token_ids=[1, 2, 3])], vocab_size=tokenizer.vocab_size)
    generator = BatchGenerator(Generator(engine, tokenizer, chat_format, MODEL, WINDOW), concurrency=3)
    source, target, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl", io.StringIO()
    source.write_text("".join(f'{{"id": {i}, "prompt": "x", "max_tokens": 3}}\n' for i in range(10)) + "[]\n")
    target.write_text('{"id":3,"choices":[]}\n{"id":4,"err')

    async with asyncio.timeout(120):
        with BatchFile(target) as output:
            counts = await write_all(generator, source, output, Console(file=out), 10)

    assert counts == (9, 1, 27)
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(record["id"] for record in records if "choices" in record) == list(range(10))
    assert "line 11: the body must be a JSON object" in out.getvalue()
    assert len(engine.requests) == 9


def test_the_input_is_never_taken_for_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "prompt": "x"}\n{"id": 2, "prompt": "the last line has no end"}')
    before = source.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(source)
    for output in (source, tmp_path / "link.jsonl"):
        assert main(["generate", "demo", f"--input={source}", f"--output={output}"]) == 78
        assert "it is the input" in capsys.readouterr().err
    assert source.read_bytes() == before
