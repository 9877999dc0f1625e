"""What a response costs above a chat completion, over an engine that answers at once:
`python -m scripts.bench_turns [--turns 200] [--tokens 128]`.

One process, no sockets and no model: what is measured is the CPU time of the API itself, all threads. A turn's cost is
that of an answer of one token; a token's is what the others add. Each response of a kept row goes on from the one
before, up to ten turns.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from scripts.flags import flags_of
from serving.api.http import build_app
from serving.api.service import ModelCard
from serving.config import ServerConfig
from serving.gateway.gateway import Gateway
from serving.generation.chat_format import ChatFormat
from serving.generation.generator import Generator
from serving.generation.tokenizer import load_tokenizer
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from tests.fakes.byte_checkpoint import write_byte_checkpoint
from tests.fakes.engine import Script, ScriptedEngine

WINDOW = 32768
DEPTH = 10  # turns of one conversation
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
KINDS = ("chat", "stateless", "kept in memory", "kept in a file")


class Bench:
    def __init__(self, folder: Path) -> None:
        checkpoint = write_byte_checkpoint(folder / "bytes", window=WINDOW)
        self.folder = folder
        self.tokenizer = load_tokenizer(checkpoint)
        self.format = ChatFormat({"default": TEMPLATE}, {}, source="bench")

    async def seconds(self, kind: str, tokens: int, turns: int) -> float:
        """Of CPU time, for one streamed turn on average."""
        engine = ScriptedEngine(scripts=[Script(token_ids=[97] * tokens)], max_model_len=WINDOW)
        gateway = Gateway()
        generator = Generator(gateway.guard(engine), self.tokenizer, self.format, "bench", WINDOW)
        path = self.folder / f"{kind}-{tokens}.sqlite" if kind == "kept in a file" else None
        app = build_app(
            generator,
            engine,
            ServerConfig(),
            ModelCard(name="bench", created=0, max_model_len=WINDOW),
            gateway=gateway,
            conversations=Conversations(SqliteConversationStore(path)),
        )
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600) as client:
            await self._turns(client, kind, tokens, DEPTH)
            begin = time.process_time()
            await self._turns(client, kind, tokens, turns)
            spent = time.process_time() - begin
        await app.state.responses.close()
        return spent / turns

    async def _turns(self, client: httpx.AsyncClient, kind: str, tokens: int, turns: int) -> None:
        parent: str | None = None
        for number in range(turns):
            if kind == "chat":
                messages = [{"role": "user", "content": "hello"}]
                body = {"messages": messages, "max_tokens": tokens, "stream": True}
                reply = await client.post("/v1/chat/completions", json=body)
            else:
                kept = kind != "stateless"
                body = {"input": "hello", "max_output_tokens": tokens, "stream": True, "store": kept}
                if kept and number % DEPTH:
                    body["previous_response_id"] = parent
                reply = await client.post("/v1/responses", json=body)
                parent = reply.text.partition('"id":"')[2].partition('"')[0]
            assert reply.status_code == 200, reply.text


async def measured(turns: int, tokens: int, folder: Path) -> Table:
    bench = Bench(folder)
    table = Table("", "ms a turn", "µs a token")
    for kind in KINDS:
        one = min([await bench.seconds(kind, 1, turns) for _ in range(3)])
        many = min([await bench.seconds(kind, tokens, turns) for _ in range(3)])
        table.add_row(kind, f"{one * 1000:.2f}", f"{(many - one) / (tokens - 1) * 1e6:.0f}")
    bench.format.close()
    return table


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Console().print(asyncio.run(measured(args.turns, args.tokens, Path(folder))))


if __name__ == "__main__":
    main()
