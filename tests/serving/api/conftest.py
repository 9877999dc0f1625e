"""The whole API over a scripted engine: a tokenizer whose tokens are bytes, so that a script can be read."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
import tokenizers
from starlette.applications import Starlette
from tokenizers import decoders, models, pre_tokenizers

from serving.api.adapter_names import AdapterNames
from serving.api.http import build_app
from serving.api.metered_engine import MeteredEngine
from serving.api.service import ModelCard, Service, StreamLimits
from serving.config import FilesConfig, ServerConfig
from serving.engine.client import Engine
from serving.events.event_log import EventLog
from serving.gateway.gateway import Gateway
from serving.generation.chat_format import ChatFormat
from serving.generation.generator import Generator
from serving.generation.text_embedder import TextEmbedder
from serving.generation.tokenizer import Tokenizer, load_tokenizer
from serving.observability.metrics import Metrics
from serving.observability.request_trace import Tracing
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.moderation.seating import moderation_of
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.sessions.durable_generations import DurablePolicy
from serving.sessions.generation_log import GenerationLog
from serving.settings.moderation import ModerationConfig
from serving.settings.retrieval import RetrievalConfig
from serving.settings.semantic_cache import SemanticCacheConfig
from tests.fakes.engine import Script, ScriptedEngine

MODEL = "weft/scripted"
WINDOW = 4096
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}{% if shout %}LOUD{% endif %}"""

Body = dict[str, Any]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level BPE without merges: a token for each byte, then the special ones."""
    folder = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIALS)
    made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def chat_format() -> Iterator[ChatFormat]:
    made = ChatFormat({"default": TEMPLATE}, {}, source="scripted")
    yield made
    made.close()


class Api:
    """An app over an engine, and clients for it without a socket."""

    def __init__(self, app: Starlette, engine: ScriptedEngine) -> None:
        self.app = app
        self.engine = engine

    @property
    def service(self) -> Service:
        return self.app.state.service

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=120)

    async def post(self, path: str, body: Body, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(path, json=body, **options)

    async def get(self, path: str) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path)

    async def events(self, path: str, body: Body) -> list[Any]:
        """The chunks of a stream that must end with [DONE]."""
        reply = await self.post(path, {**body, "stream": True})
        assert reply.status_code == 200, reply.text
        frames = reply.text.split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        return [json.loads(data_of(frame)) for frame in frames[:-2]]


class ApiMaker:
    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        self.tokenizer = tokenizer
        self.chat_format = chat_format

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def says(self, text: str, **script: Any) -> Script:
        """Generates the text, a byte a token, and then the end-of-sequence token."""
        return Script(token_ids=[*self.ids(text), *self.tokenizer.eos_token_ids], **script)

    def __call__(
        self,
        *scripts: Script,
        engine: ScriptedEngine | None = None,
        health: Engine | None = None,
        chat: bool = True,
        streams: StreamLimits | None = None,
        gateway: Gateway | None = None,
        log: GenerationLog | None = None,
        policy: DurablePolicy | None = None,
        tracing: Tracing | None = None,
        files: FilesConfig | None = None,
        encoder: TextEmbedder | None = None,
        model_embedder: TextEmbedder | None = None,
        retrieval: RetrievalConfig | None = None,
        moderation: ModerationConfig | None = None,
        memories: Memories | None = None,
        adapters: bool = False,
        semantic_cache: SemanticCacheConfig | None = None,
        events: EventLog | None = None,
        **server: Any,
    ) -> Api:
        engine = engine or ScriptedEngine(scripts=scripts, vocab_size=self.tokenizer.vocab_size, max_model_len=WINDOW)
        metrics = Metrics(MODEL)
        chat_format = self.chat_format if chat else None
        gateway = gateway or Gateway()
        generator = Generator(gateway.guard(MeteredEngine(engine, metrics)), self.tokenizer, chat_format, MODEL, WINDOW)
        card = ModelCard(name=MODEL, created=1_700_000_000, max_model_len=WINDOW)
        config = ServerConfig(**server)
        app = build_app(
            generator,
            health or engine,
            config,
            card,
            metrics=metrics,
            streams=streams,
            gateway=gateway,
            log=log,
            policy=policy,
            tracing=tracing,
            files=files,
            retrieval=retrieval,
            memories=memories,
            encoder=encoder and replace(encoder, embedder=gateway.guard_embedder(encoder.embedder)),
            model_embedder=model_embedder
            and replace(model_embedder, embedder=gateway.guard_embedder(model_embedder.embedder)),
            adapters=AdapterNames(engine, MODEL) if adapters else None,
            moderation=moderation and moderation_of(moderation, encoder, metrics.registry),
            events=events,
            semantic_cache=None
            if semantic_cache is None or encoder is None
            else SemanticCache(semantic_cache, encoder, engine, metrics.registry),
        )
        return Api(app, engine)


@pytest.fixture
def make_api(tokenizer: Tokenizer, chat_format: ChatFormat) -> ApiMaker:
    return ApiMaker(tokenizer, chat_format)


def data_of(frame: str) -> str:
    """What one event of a stream holds."""
    return "".join(line.removeprefix("data: ") for line in frame.split("\n") if line.startswith("data: "))


def chat_body(**fields: Any) -> Body:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}


def text_body(**fields: Any) -> Body:
    return {"model": MODEL, "prompt": "hi", **fields}


def text_of(chunks: Sequence[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
