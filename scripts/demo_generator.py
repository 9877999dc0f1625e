"""The demo's generator without an engine behind it, for what is measured before a token is drawn."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from serving.app import build_generator
from serving.config import Deployment, load_deployment
from serving.engine.remote import RemoteEngine
from serving.generation.generator import Generator

_DEMO = Path(__file__).resolve().parents[1] / "configs" / "deployments" / "demo.toml"


@asynccontextmanager
async def demo_generator() -> AsyncGenerator[tuple[Deployment, Generator], None]:
    """With its tokenizer and template."""
    deployment = load_deployment(_DEMO)
    engine = RemoteEngine(Path("unused.sock"))  # nothing is asked of it
    generator = build_generator(deployment, engine)
    try:
        yield deployment, generator
    finally:
        await engine.close()
        if generator.chat_format is not None:
            generator.chat_format.close()
