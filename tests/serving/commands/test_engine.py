"""The engine process around its engine: ready, stopped, failed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from serving.commands.engine import EXIT_ENGINE_FAILED, Failed, crash_reporter, serve
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.remote import RemoteEngine
from serving.lifeline import Status
from tests.fakes.mortal_engine import MortalEngine

PATIENCE = 180.0  # seconds; only a broken test waits that long


class Reports:
    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def report(self, status: Status) -> None:
        if status.ready:
            self.ready.set()


async def test_sigterm_closes_the_engine_and_ends_with_0(tmp_path: Path) -> None:
    engine, reports, socket = MortalEngine(), Reports(), tmp_path / "private" / "engine.sock"
    running = asyncio.create_task(serve(engine, socket, reports, Failed()))
    async with asyncio.timeout(PATIENCE):
        await reports.ready.wait()
        client = RemoteEngine(socket)
        assert (await client.info()).model_name == "mortal"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
        await client.close()
    assert not engine.alive
    assert not socket.exists()


async def test_a_failed_engine_ends_the_process_with_a_code_of_its_own(tmp_path: Path) -> None:
    reports, failed = Reports(), Failed()
    running = asyncio.create_task(serve(MortalEngine(), tmp_path / "private" / "engine.sock", reports, failed))
    async with asyncio.timeout(PATIENCE):
        await reports.ready.wait()
        await asyncio.to_thread(failed.set, RuntimeError("the device is gone"))
        assert await running == EXIT_ENGINE_FAILED


async def test_a_failed_engine_leaves_a_report(tmp_path: Path) -> None:
    config = EngineConfig(crash_reports=tmp_path / "crashes")
    deployment = Deployment(name="tiny", model=ModelConfig(checkpoint=tmp_path), engine=config)
    failed = Failed()
    failed.set(RuntimeError("a word of a user's"))
    engine = MortalEngine()
    async with asyncio.timeout(PATIENCE):
        await serve(engine, tmp_path / "private" / "engine.sock", Reports(), failed, crash_reporter(deployment, engine))
    (report,) = (tmp_path / "crashes").iterdir()
    assert "RuntimeError" in report.read_text()
    assert "a word" not in report.read_text()


async def test_a_failure_before_the_loop_ran_is_not_lost(tmp_path: Path) -> None:
    failed = Failed()
    failed.set(RuntimeError("early"))
    async with asyncio.timeout(PATIENCE):
        code = await serve(MortalEngine(), tmp_path / "private" / "engine.sock", Reports(), failed)
    assert code == EXIT_ENGINE_FAILED


JAX = """
import logging
from serving.commands.engine import quiet_jax
from serving.observability.logs import configure_logging

configure_logging("text")
quiet_jax()
import jax  # after it, as in the command

assert not logging.getLogger("jax").handlers
jax.devices()
logging.getLogger("jax._src.xla_bridge").info("a backend was not found")
logging.getLogger("jax._src.xla_bridge").warning("a real warning")
logging.getLogger("serving").info("weft's own")
"""


def test_jax_says_no_more_than_warnings_and_each_once() -> None:
    ended = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, timeout=10 * PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert "Unable to initialize backend" not in ended.stderr
    assert "a backend was not found" not in ended.stderr
    assert ended.stderr.count("a real warning") == 1
    assert "weft's own" in ended.stderr


HANGS = """
import threading
from serving.commands.engine import EXIT_ENGINE_FAILED, end_at_once

threading.Thread(target=threading.Event().wait).start()  # the interpreter would wait for it
print("last words", end="")
end_at_once(EXIT_ENGINE_FAILED)
"""


def test_a_thread_that_hangs_does_not_keep_a_failed_process() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=10 * PATIENCE)
    assert ended.returncode == EXIT_ENGINE_FAILED, ended.stderr
    assert ended.stdout == "last words"
