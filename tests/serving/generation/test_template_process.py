import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.generation.template_process import TemplateError, TemplateProcess


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess({"default": "{{ x }}{{ y }}", "other": "{{ z }}"}, most_chars=1000)
    yield made
    made.close()


def test_compile_tells_the_variables_that_each_template_reads(process: TemplateProcess) -> None:
    assert process.compile() == {"default": {"x", "y"}, "other": {"z"}}


def test_renders_from_many_threads_do_not_mix(process: TemplateProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda i: process.render("default", {"x": i, "y": "é😀"}), range(100))
    assert list(results) == [f"{i}é😀" for i in range(100)]


def test_variables_larger_than_a_pipe_arrive_whole() -> None:
    process = TemplateProcess({"default": "{{ x | length }}{{ x }}"})
    text = "é" * 1_000_000
    assert process.render("default", {"x": text}) == "1000000" + text
    process.close()


def test_output_longer_than_the_limit_is_stopped(process: TemplateProcess) -> None:
    assert len(process.render("default", {"x": "a" * 1000})) == 1000
    with pytest.raises(TemplateError, match="longer than 1000") as caught:
        process.render("default", {"x": "a" * 1001})
    assert caught.value.kind == "limit"


def test_after_its_worker_was_killed_the_next_render_starts_another(process: TemplateProcess) -> None:
    process.compile()
    worker = process._worker._process
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert process.render("other", {"z": "back"}) == "back"


def test_closing_ends_the_worker(process: TemplateProcess) -> None:
    process.compile()
    worker = process._worker._process
    assert worker is not None
    process.close()
    assert worker.returncode is not None
